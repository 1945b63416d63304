"""Abstention: known answers and refusals; its promise is simulated in simulations/."""

import math

import numpy as np
import pytest

from ensemble import InputError
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.numbers import Numbers
from ensemble.metrics import abstention
from ensemble.metrics.abstention import ACCEPT_ALL, are_wrong, fit_abstention

rule = abstention.Rule.parse
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
    with pytest.raises(InputError, match=r"max_error=E.*coverage=C"):
        rule(text)


def test_no_error_in_150_examples_proves_no_more_than_2_percent():
    doubts = np.linspace(0.1, 0.2, 150)
    errors = np.zeros(150, bool)
    fitted = fit_abstention(rule("max_error=0.02"), doubts, errors)
    assert fitted.threshold == ACCEPT_ALL
    with pytest.raises(ValueError, match=r"at most 0\.019 .* 157 or more right answers, and 150 "):
        fit_abstention(rule("max_error=0.019"), doubts, errors)


def test_numbers_are_wrong_beyond_a_tolerance():
    p = Numbers({"loc": np.zeros((1, 3)), "scale": np.ones((1, 3))}, unit=2.0)
    y = np.array([0.5, 1.5, -3.0])
    assert are_wrong(p, y).tolist() == [False, True, True]
    assert are_wrong(p, y, 2.0).tolist() == [False, False, True]
    classes = Classes({"log_probs": np.log([[[0.9, 0.1], [0.2, 0.8]]])})
    assert are_wrong(classes, np.array([0, 0])).tolist() == [False, True]
    with pytest.raises(ValueError, match="tolerance"):
        are_wrong(classes, np.array([0, 0]), 1.0)


# Thresholds.


def test_a_threshold_by_hand():
    """100 examples, the 70 most confident of them right: tested are 60, 62, 64, ..."""
    doubts = np.linspace(0.01, 1, 100)
    errors = np.arange(100) >= 70
    order = np.random.default_rng(0).permutation(100)
    fitted = fit_abstention(rule("max_error=0.05"), doubts[order], errors[order])
    assert doubts[69] < fitted.threshold < doubts[70]
    errors[60] = True  # One error in 62 may be 7.4%, none in 60 4.9%.
    fitted = fit_abstention(rule("max_error=0.05"), doubts[order], errors[order])
    assert doubts[59] < fitted.threshold < doubts[60]
    fitted = fit_abstention(rule("max_error=0.08"), doubts[order], errors[order])
    assert doubts[69] < fitted.threshold < doubts[70]


def test_what_cannot_be_proved_is_said():
    doubts = np.linspace(0.01, 0.5, 400)
    errors = np.arange(400) % 49 == 10  # 2%.
    with pytest.raises(ValueError, match="an error of at most 0") as one:
        fit_abstention(rule("max_error=0.03"), doubts, errors)
    assert "400 calibration examples do not show it" in str(one.value)


def test_equal_confidences_are_accepted_or_refused_together():
    """Also where another device rounds them to others."""
    doubts = np.repeat([0.001, 0.1, 0.4], [100, 60, 40])
    errors = np.repeat([0, 1, 1], [100, 60, 40]).astype(bool)
    fitted = fit_abstention(rule("max_error=0.04"), doubts, errors)
    assert 0.001 * 1.0005 < fitted.threshold < 0.1 / 1.0005
    for share, expected in ((0.3, 100), (0.5, 160), (0.99, 200)):
        fitted = fit_abstention(rule(f"coverage={share}"), doubts, errors)
        assert (doubts < fitted.threshold).sum() == expected


def test_where_all_are_equally_confident_all_or_none_are_accepted():
    errors = np.arange(200) == 3
    fitted = fit_abstention(rule("max_error=0.03"), np.full(200, 0.2), errors)
    assert fitted.threshold == ACCEPT_ALL
    with pytest.raises(ValueError, match="200 calibration examples"):
        fit_abstention(rule("max_error=0.02"), np.full(200, 0.2), errors)


@pytest.mark.parametrize("coverage", [0.3, 0.9])
def test_a_coverage_is_reached_on_average(coverage):
    rng = np.random.default_rng(0)
    found = [
        fit_abstention(rule(f"coverage={coverage}"), rng.random(40), np.zeros(40, bool)).threshold
        for _ in range(NUM_SPLITS)
    ]
    mean = np.mean(found)
    standard_error = np.std(found) / math.sqrt(NUM_SPLITS)
    assert coverage - 4 * standard_error < mean < coverage + 1 / 41 + 4 * standard_error
