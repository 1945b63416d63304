"""The page of simulated statements is drawn from the results, and says what was missed."""

import csv
import dataclasses
import json

from conftest import ROOT

from simulations import page, suite


def stored():
    folder = ROOT / "benchmarks" / "results" / "statements"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_the_page_is_that_of_the_results():
    written = (ROOT / "docs" / "statements.md").read_text()
    assert written.startswith(page.text(stored()) + page.NEXT), "python -m simulations --page"
    rows = ROOT / "benchmarks" / "results" / "statements.csv"
    assert rows.read_text() == page.rows_as_csv(stored()), "python -m simulations --page"


def test_results_are_of_statements_that_there_are():
    assert {*stored()} <= {one.name for one in suite.STATEMENTS}


def test_the_rule_that_is_printed_is_the_one_that_marks():
    for promise in (
        "A 95% interval should hold in 92% to 97.5% of cases",
        "at least 95% in 92% or more",
        "at most 5% of all cases",
        "more than two standard errors of the simulation",
    ):
        assert promise in " ".join(page.HEAD.split())
    interval, verdict = (
        next(one for one in suite.STATEMENTS if one.kind == kind and one.level == 0.95)
        for kind in ("interval", "verdict")
    )
    error = (0.92 * 0.08 / 2000) ** 0.5
    for errors, is_met in ((1.9, True), (2.1, False)):
        for statement, share in (
            (dataclasses.replace(interval, at_least=False), 0.92 - errors * error),
            (dataclasses.replace(interval, at_least=True), 0.92 - errors * error),
            (dataclasses.replace(interval, at_least=False), 0.975 + errors * 0.00349),
            (verdict, 0.05 + errors * 0.00487),
        ):
            count = {"stated": 2000, "yes": 2000 * share}
            assert suite.is_met(statement, count, 2000) is is_met
    assert suite.is_met(dataclasses.replace(interval, at_least=True), {"stated": 9, "yes": 9}, 9)


def test_a_share_outside_is_marked():
    name = suite.STATEMENTS[0].name
    setting = next(iter(suite.STATEMENTS[0].settings))
    counts = {"nll": {"stated": 2000, "yes": 1600}}
    result = {"replications": 2000, "counts": counts, "commit": "abc", "date": "2026-01-01"}
    results = {name: {setting: result}}
    text = page.text(results)
    assert "1 of 1 rows miss this" in text
    assert f"| 80.0% to 80.0% | 1 | **80.0%** of nll: {setting} |" in text
    header, row = csv.reader(page.rows_as_csv(results).splitlines())
    assert dict(zip(header, row, strict=True)) == {
        "statement": name, "setting": setting, "part": "nll", "found": "0.8", "stated": "1",
        "replications": "2000", "is_met": "False",
    }  # fmt: skip
    counts["nll"] |= {"stated": 1600, "yes": 800}
    assert f"| **50.0%** of nll: {setting}, stated 80% |" in page.text(results)
