"""Coverage by group and over time."""

import re

import numpy as np
import pytest
from run_parts import strata_of

import ensemble
from ensemble.evaluation.questions.quality import has_few_groups
from ensemble.evaluation.strata import by_stratum
from ensemble.scoring.combine import Share, over_groups


def test_groups_come_the_largest_first():
    strata = strata_of(["b", "a", "b", "b", "a"])
    found = by_stratum(np.array([True, False, True, False, False]), strata)
    assert [(one["name"], one["num_rows"], one["share"]) for one in found] == [
        ("b", 3, 2 / 3),
        ("a", 2, 0.0),
    ]
    assert all(one["interval"][0] <= one["share"] <= one["interval"][1] for one in found)
    assert by_stratum(np.array([True]), None) == []


def test_periods_come_in_order_and_keep_equal_times_together():
    days = np.repeat([18262.5, 18263, 18400, 18500, 18600, 18700.9], 4)
    order = np.random.default_rng(0).permutation(24)
    found = by_stratum((days < 18400)[order], strata_of(days[order], "time", has_dates=True))
    assert found[0]["name"] == "2020-01-01 to 2020-01-02"
    assert found[-1]["name"].endswith("2021-03-14")
    assert sum(one["num_rows"] for one in found) == 24
    assert [one["share"] for one in found] == sorted((one["share"] for one in found), reverse=True)
    numbers = by_stratum(np.ones(24, bool), strata_of(days, "time"))
    assert numbers[0]["name"] == "18262.5 to 18263"


def test_intervals_of_scores_are_over_groups_and_never_narrower_than_over_rows():
    held = np.repeat([1.0, 0.0, 1.0, 1.0] * 3, 10)
    low, high = over_groups(Share(), held, np.repeat(list("abcdefghijkl"), 10))
    assert 0.2 < low < Share().interval(held)[0] < 0.75
    assert 0.75 < Share().interval(held)[1] < high < 1
    alone = np.arange(120)
    few = over_groups(Share(), held, alone)
    assert few[0] <= Share().interval(held)[0]
    assert strata_of(np.arange(120.0), "time").groups is None


def test_few_groups_say_nothing_of_others():
    assert over_groups(Share(), np.arange(20) % 5 > 0, np.repeat(list("abcd"), 5)) is None
    assert all(has_few_groups({"num_groups": number}) for number in (1, 4))
    assert not has_few_groups({"num_groups": 10})
    assert not has_few_groups({})


@pytest.mark.check
@pytest.mark.parametrize("likelihood", ["gaussian", "quantiles"])
def test_few_groups_have_no_interval_at_all_and_the_page_says_which_are_of_rows(
    likelihood, tmp_path
):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 8)
    shared = rng.normal(size=60)[groups]
    rows = zip(groups, rng.normal(size=480), shared + 0.3 * rng.normal(size=480), strict=True)
    lines = "".join(f"p{k},{a:.4f},{y:.4f}\n" for k, a, y in rows)
    (tmp_path / "t.csv").write_text(f"patient,a,y\n{lines}")
    config = {
        "dataset": f"csv:{tmp_path / 't.csv'}",
        "target": "y",
        "split": "group:patient",
        "likelihood": likelihood,
        "model": "logistic_regression",
        "num_epochs": 2,
        "ensemble_size": 2,
    }
    ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    found = ensemble.evaluate(tmp_path / "run", tmp_path / "out", show_progress=False)["test"]
    assert found["num_groups"] == 6
    assert {one["interval"] for one in found["scores"].values()} == {None}
    text = (tmp_path / "out" / "report.html").read_text()
    said = re.sub(r"\s+", " ", text)
    assert "over groups of patient" in said
    assert "Those of all others take rows for independent." in said


@pytest.mark.check
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_groups_are_those_of_the_report_though_the_data_are_gone(likelihood, tmp_path, caplog):
    rng = np.random.default_rng(0)
    groups, a = np.repeat(np.arange(60), 8), rng.normal(size=480)
    shared = rng.normal(size=60)[groups]
    target = a + shared if likelihood == "gaussian" else np.where(a + shared > 0, "yes", "no")
    rows = zip(groups, a, target, strict=True)
    path = tmp_path / "t.csv"
    path.write_text("patient,a,y\n" + "".join(f"p{k},{one},{y}\n" for k, one, y in rows))
    config = {
        "dataset": f"csv:{path}",
        "target": "y",
        "split": "group:patient",
        "likelihood": likelihood,
        "model": "logistic_regression",
        "learning_rate": 0.01,
        "num_epochs": 2,
        "ensemble_size": 2,
    }
    result = ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    how = {"show_progress": False}
    found = ensemble.evaluate(tmp_path / "run", tmp_path / "out", datasets=["shift"], **how)
    assert result.report["test"] == found["test"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'id="figure-strata"' in page  # Of six groups; of up to five it is a table.
    assert 'id="strata"' not in page
    assert found["test"]["over_groups"] == "patient"
    if likelihood == "gaussian":  # Six groups are too few to tell.
        assert result.report["simple"] == found["simple"]
        assert found["simple"]["constant"]["excess_interval"] == {"rmse": None}
    for section in found["shift"].values():
        assert {one for name in section["change"].values() for one in name} == {None}
    with caplog.at_level("WARNING", logger="ensemble"):
        ensemble.load(tmp_path / "run", abstain="coverage=0.5")
        assert "guarantees no error rate" not in caplog.text
        tolerance = "@100" * (likelihood == "gaussian")
        ensemble.load(tmp_path / "run", abstain=f"max_error=0.9{tolerance}")
    assert "guarantees no error rate: rows come in groups (patient)" in caplog.text
    path.unlink()
    alone = ensemble.evaluate(tmp_path / "run", tmp_path / "alone", datasets=["none"], **how)
    assert alone["test"] == found["test"]


@pytest.mark.parametrize("drift", [9.0, pytest.param(0.0, marks=pytest.mark.check)])
def test_a_drift_in_the_last_period_is_a_finding(drift, tmp_path):
    rng = np.random.default_rng(0)
    day, a = np.arange(500), rng.normal(size=500)
    target = a + 0.3 * rng.normal(size=500) + drift * (day >= 490)
    rows = "".join(f"{one},{x:.4f},{y:.4f}\n" for one, x, y in zip(day, a, target, strict=True))
    (tmp_path / "t.csv").write_text(f"day,a,y\n{rows}")
    config = {
        "dataset": f"csv:{tmp_path / 't.csv'}",
        "target": "y",
        "split": "time:day",
        "season": 7,
        "likelihood": "gaussian",
        "model": "logistic_regression",
        "learning_rate": 0.1,
        "num_epochs": 20,
        "ensemble_size": 2,
    }
    result = ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    how = {"datasets": ["none"], "show_progress": False}
    found = ensemble.evaluate(tmp_path / "run", tmp_path / "out", **how)
    assert found["simple"] == result.report["simple"]
    assert found["simple"]["last_season"]["scores"]["rmse"]["value"] > 1
    (last,) = (one for one in found["findings"] if one["code"].startswith("strata."))
    expected = "strata.time_last_period_outside" if drift else "strata.time_last_period"
    assert last["code"] == expected
    (baseline,) = (one for one in found["findings"] if one["code"].startswith("baseline."))
    assert "the value a season before" in baseline["text"]
    *_, period = next(iter(found["conformal"].values()))["by_stratum"]
    low, high = period["coverage_range"]
    assert low < 0.9 <= high <= 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "last season" in page


def test_classes_say_that_they_have_no_season(tmp_path):
    rows = "".join(f"{day},{day % 5},{'xy'[day % 2]}\n" for day in range(100))
    (tmp_path / "t.csv").write_text(f"day,a,y\n{rows}")
    config = {"dataset": f"csv:{tmp_path / 't.csv'}", "target": "y", "split": "time:day"}
    config |= {"season": 7, "model": "logistic_regression", "num_epochs": 1, "ensemble_size": 2}
    report = ensemble.train(config, show_progress=False).report
    assert any("Classes have no row of the value a season before" in one for one in report["notes"])


@pytest.mark.check
def test_a_page_says_why_rows_that_share_a_time_have_no_last_value(tmp_path):
    rng = np.random.default_rng(0)
    rows = "".join(f"{k // 2},{x:.3f},{x:.3f}\n" for k, x in enumerate(rng.normal(size=200)))
    (tmp_path / "t.csv").write_text(f"day,a,y\n{rows}")
    config = {
        "dataset": f"csv:{tmp_path / 't.csv'}",
        "target": "y",
        "split": "time:day",
        "likelihood": "gaussian",
        "model": "logistic_regression",
        "num_epochs": 1,
        "ensemble_size": 2,
    }
    ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    how = {"datasets": ["none"], "show_progress": False}
    found = ensemble.evaluate(tmp_path / "run", tmp_path / "out", **how)
    reason = found["simple"]["last_value"]["reason"]
    assert f"Last value: {reason}." in (tmp_path / "out" / "report.html").read_text()
