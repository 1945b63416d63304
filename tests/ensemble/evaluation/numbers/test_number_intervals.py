"""Intervals of numbers' scores: what `simulations/numbers.py` cannot see."""

import math

import numpy as np
import pytest
import scipy.stats

from ensemble.likelihoods.gaussian import Gaussian
from ensemble.scoring.combine import Mean, RootMean
from ensemble.scoring.sections import score_split


def scores_of(residuals):
    arrays = {"loc": np.zeros((1, len(residuals))), "scale": np.ones((1, len(residuals)))}
    return score_split(Gaussian(0.0, 1.0, -5.0, 5.0).view(arrays, residuals))["scores"]


@pytest.mark.parametrize(("freedom", "is_told"), [(3, False), (30, True)])
def test_scores_that_few_errors_decide_have_no_interval(freedom, is_told):
    found = scores_of(scipy.stats.t(freedom).ppf((np.arange(2000) + 0.5) / 2000))
    for name in ("rmse", "nll"):
        assert (found[name]["interval"] is not None) is is_told, name
    for name in ("mae", "crps", "width_90", "coverage_90", "interval_score_90"):
        low, high = found[name]["interval"]
        assert low <= found[name]["value"] <= high, name


def test_an_interval_score_of_few_missed_targets_has_no_interval():
    residuals = np.linspace(-1.6, 1.6, 100)  # The ends of 90% intervals are at 1.645.
    nine, ten = (scores_of(np.append(residuals, [3.0] * number)) for number in (9, 10))
    assert nine["interval_score_90"]["interval"] is None
    assert ten["interval_score_90"]["interval"] is not None


def test_an_infinite_score_has_no_interval():
    assert Mean(tail="light").interval(np.array([1.0, math.inf, 2.0])) is None
    assert Mean().interval(np.array([1.0, math.nan, 2.0])) is None


def test_differences_and_ratios_of_roots_are_about_what_they_are():
    rng = np.random.default_rng(0)
    squares = rng.chisquare(3, 400)
    others = 4 * squares * np.exp(0.01 * rng.normal(size=400))
    first, second = math.sqrt(squares.mean()), math.sqrt(others.mean())
    low, high = RootMean().change(squares, others)
    assert low < second - first < high
    low, high = RootMean().ratio(squares, others)
    assert low < second / first < high
    assert high - low < 0.01  # In pairs, what both have in common does not count.
