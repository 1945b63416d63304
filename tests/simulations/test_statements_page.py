"""The page of simulated statements is drawn from the results, and says what was missed."""

import json

from conftest import ROOT

from simulations import page, suite


def stored():
    folder = ROOT / "benchmarks" / "results" / "statements"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_the_page_is_that_of_the_results():
    assert (ROOT / "docs" / "statements.md").read_text() == page.text(stored())


def test_results_are_of_statements_that_there_are():
    assert {*stored()} <= {one.name for one in suite.STATEMENTS}


def test_a_share_outside_is_marked():
    name = suite.STATEMENTS[0].name
    setting = next(iter(suite.STATEMENTS[0].settings))
    counts = {"nll": {"stated": 2000, "yes": 1600}}
    result = {"replications": 2000, "counts": counts, "commit": "abc", "date": "2026-01-01"}
    text = page.text({name: {setting: result}})
    assert "| nll | 80.0% | 100% | 2,000 | **missed** |" in text
