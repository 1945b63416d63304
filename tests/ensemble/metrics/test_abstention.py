"""Abstention: known answers and refusals; its promise is simulated in simulations/."""

import math

import numpy as np
import pytest
import scipy.stats
from test_scores import log_of, random_case

from ensemble import UserError, metrics
from ensemble.metrics import abstention
from simulations.abstention import doubts_of

rule = metrics.Rule.parse
NUM_SPLITS = 2000


# What a rule is, and what thresholds are of.


def test_a_rule_is_read_and_written():
    assert rule("max_error=0.02") == ("max_error", 0.02, None)
    assert str(rule("coverage=.90")) == "coverage=0.9"
    assert rule("max_error=0.1@2.5") == ("max_error", 0.1, 2.5)
    assert str(rule("max_error=.10@2.50")) == "max_error=0.1@2.5"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.02",
        0.02,
        "max_error",
        "max_error=2%",
        "max_error=0",
        "coverage=1",
        "x=.1",
        "max_error=0.1@",
        "max_error=0.1@0",
        "max_error=0.1@inf",
    ],
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(UserError, match=r"max_error=E.*coverage=C"):
        rule(text)


def test_one_minus_max_is_exact_where_it_is_tiny():
    (log_probs,), _ = random_case(0, num_members=1)
    expected = 1 - np.exp(log_probs.max(axis=1))
    np.testing.assert_allclose(metrics.one_minus_max(log_probs), expected, rtol=1e-9)
    certain = np.array([[0.0, -60.0, -61.0], [-60.0, 0.0, -62.0]], np.float32)
    first, second = metrics.one_minus_max(certain)
    assert 0 < second < first < 1e-25
    assert metrics.one_minus_max(log_of([[1.0, 0.0]])) > 0
    assert (metrics.one_minus_max(np.log(np.full((1, 9), 1 / 9))) < metrics.ACCEPT_ALL).all()


# Bounds.


@pytest.mark.parametrize("num_examples", [1, 7, 150])
def test_bounds_are_scipys(num_examples):
    for num_errors in {0, 1, num_examples // 3, num_examples}:
        two = scipy.stats.binomtest(num_errors, num_examples).proportion_ci(0.95, "exact")
        assert metrics.error_interval(num_errors, num_examples) == pytest.approx(tuple(two))
        one = scipy.stats.binomtest(num_errors, num_examples, alternative="less")
        high = one.proportion_ci(0.95, "exact").high
        assert metrics.error_bound(num_errors, num_examples) == pytest.approx(high)
    assert metrics.error_interval(0, 0) == (0, 1)


def test_no_error_in_150_examples_proves_no_more_than_2_percent():
    assert metrics.error_bound(0, 150) == pytest.approx(1 - 0.05 ** (1 / 150))
    assert abstention.smallest_provable_error(150) == pytest.approx(0.0198, abs=1e-4)
    doubts, errors = np.linspace(0.1, 0.2, 150), np.zeros(150, bool)
    fitted = metrics.fit_abstention(rule("max_error=0.02"), doubts, errors)
    assert fitted == (("max_error", 0.02, None), metrics.ACCEPT_ALL, 150, 150, 0)
    with pytest.raises(
        ValueError,
        match=r"150 calibration .* 1\.98% .* 0\.019 .* 157",
    ):
        metrics.fit_abstention(rule("max_error=0.019"), doubts, errors)


def test_so_many_examples_are_needed_and_no_fewer():
    for max_error in (0.001, 0.01, 0.02, 0.05, 0.3):
        needed = abstention.num_needed(max_error)
        assert abstention.smallest_provable_error(needed) <= max_error
        assert abstention.smallest_provable_error(needed - 1) > max_error


# Thresholds.


def test_a_threshold_by_hand():
    """100 examples, the 70 most confident of them right: tested are 60, 62, 64, ..."""
    doubts = np.linspace(0.01, 1, 100)
    errors = np.arange(100) >= 70
    order = np.random.default_rng(0).permutation(100)
    fitted = metrics.fit_abstention(rule("max_error=0.05"), doubts[order], errors[order])
    assert fitted.num_accepted == 70
    assert doubts[69] < fitted.threshold < doubts[70]
    errors[60] = True  # One error in 62 may be 7.4%, none in 60 4.9%.
    fitted = metrics.fit_abstention(rule("max_error=0.05"), doubts[order], errors[order])
    assert (fitted.num_accepted, fitted.num_errors) == (60, 0)
    fitted = metrics.fit_abstention(rule("max_error=0.08"), doubts[order], errors[order])
    assert (fitted.num_accepted, fitted.num_errors) == (70, 1)


def test_what_cannot_be_proved_is_said():
    doubts = np.linspace(0.01, 0.5, 400)
    errors = np.arange(400) % 49 == 10  # 2%.
    with pytest.raises(ValueError, match="no threshold keeps the error at most 0") as one:
        metrics.fit_abstention(rule("max_error=0.03"), doubts, errors)
    assert "of the 104 most confident of 400 calibration examples 2 are wrong" in str(one.value)
    assert "so that the error may be up to 5.93%; at this rate it takes some 2,691 " in str(
        one.value
    )
    with pytest.raises(ValueError, match="max_error, for this ensemble"):
        metrics.fit_abstention(rule("max_error=0.02"), doubts, errors)


def test_equal_confidences_are_accepted_or_refused_together():
    """Also where another device rounds them to others."""
    doubts = np.repeat([0.001, 0.1, 0.4], [100, 60, 40])
    errors = np.repeat([0, 1, 1], [100, 60, 40]).astype(bool)
    fitted = metrics.fit_abstention(rule("max_error=0.04"), doubts, errors)
    assert fitted.num_accepted == 100
    assert 0.001 * 1.0005 < fitted.threshold < 0.1 / 1.0005
    for share, expected in ((0.3, 100), (0.5, 160), (0.99, 200)):
        fitted = metrics.fit_abstention(rule(f"coverage={share}"), doubts, errors)
        assert fitted.num_accepted == expected


def test_where_all_are_equally_confident_all_or_none_are_accepted():
    errors = np.arange(200) == 3
    fitted = metrics.fit_abstention(rule("max_error=0.03"), np.full(200, 0.2), errors)
    assert (fitted.threshold, fitted.num_accepted) == (metrics.ACCEPT_ALL, 200)
    with pytest.raises(ValueError, match="of the 200 most confident of 200"):
        metrics.fit_abstention(rule("max_error=0.02"), np.full(200, 0.2), errors)


def test_terms_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"must be \[N\]"):
        metrics.fit_abstention(rule("coverage=0.5"), np.zeros(3), np.zeros(4, bool))


@pytest.mark.parametrize("coverage", [0.3, 0.9])
def test_a_coverage_is_reached_on_average(coverage):
    rng = np.random.default_rng(0)
    found = [
        metrics.fit_abstention(
            rule(f"coverage={coverage}"), rng.random(40), np.zeros(40, bool)
        ).threshold
        for _ in range(NUM_SPLITS)
    ]
    mean, standard_error = np.mean(found), np.std(found) / math.sqrt(NUM_SPLITS)
    assert coverage - 4 * standard_error < mean < coverage + 1 / 41 + 4 * standard_error


# The promise is simulated in simulations/abstention.py.


def test_what_can_be_proved_mostly_is():
    """A calibrated ensemble that is right on 90%: half of its answers at an error of 5%."""
    doubts = doubts_of("easy")
    rng, accepted = np.random.default_rng(0), []
    for _ in range(200):
        drawn = rng.choice(doubts, 1000)
        errors = rng.random(1000) < drawn
        accepted.append(
            metrics.fit_abstention(rule("max_error=0.05"), drawn, errors).num_accepted / 1000
        )
    assert np.quantile(accepted, 0.1) > 0.6
