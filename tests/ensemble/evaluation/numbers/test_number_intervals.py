"""Intervals of numbers' scores: what `simulations/numbers.py` cannot see."""

import math

import numpy as np
import pytest
import scipy.stats

from ensemble.evaluation.numbers import number_intervals
from ensemble.metrics import regression


def make_terms(residuals):
    return regression.gaussian_terms(np.zeros(len(residuals)), np.ones(len(residuals)), residuals)


@pytest.mark.parametrize(("freedom", "is_told"), [(3, False), (30, True)])
def test_scores_that_few_errors_decide_have_no_interval(freedom, is_told):
    residuals = scipy.stats.t(freedom).ppf((np.arange(2000) + 0.5) / 2000)
    found = number_intervals.intervals(make_terms(residuals))
    scores = regression.means(make_terms(residuals))
    for name in ("rmse", "nll"):
        assert (found[name] is not None) is is_told, name
    for name in ("mae", "crps", "width_90", "coverage_90", "interval_score_90"):
        low, high = found[name]
        assert low <= scores[name] <= high, name


def test_an_interval_score_of_few_missed_targets_has_no_interval():
    residuals = np.linspace(-1.6, 1.6, 100)  # The ends of 90% intervals are at 1.645.
    found = number_intervals.intervals(make_terms(np.append(residuals, [3.0] * 9)))
    assert found["interval_score_90"] is None
    found = number_intervals.intervals(make_terms(np.append(residuals, [3.0] * 10)))
    assert found["interval_score_90"] is not None


def test_an_infinite_score_has_no_interval():
    found = number_intervals.intervals({"nll": [1.0, math.inf, 2.0], "crps": [1.0, math.nan, 2.0]})
    assert found == {"nll": None, "crps": None}


def test_differences_and_ratios_of_roots_are_about_what_they_are():
    rng = np.random.default_rng(0)
    squares = rng.chisquare(3, 400)
    others = 4 * squares * np.exp(0.01 * rng.normal(size=400))
    first, second = math.sqrt(squares.mean()), math.sqrt(others.mean())
    low, high = number_intervals.of_rmse_difference(squares, others)
    assert low < second - first < high
    low, high = number_intervals.of_rmse_ratio(squares, others)
    assert low < second / first < high
    assert high - low < 0.01  # In pairs, what both have in common does not count.
