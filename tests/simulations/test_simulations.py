"""Simulations cover every metric and rule; a short form of each holds; faults are found."""

import pytest

from ensemble.metrics import metrics_of
from ensemble.report.findings import RULES
from simulations import alarms, chains, coverage, suite


def test_every_rule_is_simulated_or_says_why_not():
    simulated = {rule for null in alarms.NULLS.values() for rule in null.false}
    assert simulated | alarms.NOT_SIMULATED.keys() == set(RULES)
    assert simulated.isdisjoint(alarms.NOT_SIMULATED)


@pytest.mark.parametrize("world", ["2 classes", "5 classes, groups"])
def test_intervals_of_every_metric_are_simulated(world):
    found = coverage.simulate(world, 100, 60)
    named = {one.metric for one in found}
    p = coverage.WORLDS[world]().ours
    without = {"ece", "adaptive_ece"}
    assert named == {
        f"{n}{d}" for n in metrics_of(p) if n not in without for d in ("", " difference")
    }
    accuracy = next(one for one in found if one.metric == "accuracy")
    assert accuracy.stated == 1
    assert 0.85 < accuracy.held <= 1


@pytest.mark.check
@pytest.mark.parametrize("world", ["numbers", "quantiles"])
def test_intervals_of_numbers(world):
    found = {one.metric: one for one in coverage.simulate(world, 300, 100)}
    assert found["crps"].held > 0.85
    assert found["rmse difference"].held > 0.8


@pytest.mark.check
@pytest.mark.parametrize("world", alarms.NULLS)
def test_rules_are_mostly_silent_where_there_is_nothing_to_say(world):
    for one in alarms.simulate(world, 150, 20):
        assert one.share <= 0.25, one


@pytest.mark.parametrize("claim", chains.CLAIMS)
def test_claims_of_chains_mostly_hold(claim):
    held = chains.simulate(claim, 20).held
    assert held is None or held >= 0.75


def test_what_is_beyond_a_limit_is_a_fault():
    row = {"world": "2 classes", "size": 100, "metric": "nll", "stated": 1.0, "replications": 1000}
    alarm = {"world": "equal", "size": 150, "rule": "baseline", "replications": 1000}
    claim = {"claim": "mean", "stated": 1.0, "replications": 1000}
    good = {
        "coverage": [{**row, "held": 0.92}, {**row, "held": 0.9, "world": "t5"}],
        "alarms": [{**alarm, "share": 0.06}],
        "chains": [{**claim, "held": 0.92}],
    }
    assert list(suite.faults(good)) == []
    bad = {
        "coverage": [{**row, "held": 0.9}, {**row, "held": 0.88, "world": "t5"}],
        "alarms": [{**alarm, "share": 0.08}],
        "chains": [{**claim, "held": 0.9}],
    }
    assert len(list(suite.faults(bad))) == 4
    assert "nll" in suite.table(good)
