"""Calibration of numbers: the PIT, one factor of the scale, conformal intervals."""

import numpy as np
import pytest
from scipy import stats

from ensemble.metrics import number_calibration as calibration
from ensemble.scoring.view import of_distance, of_ends


def test_the_pit_of_the_right_distribution_is_uniform_and_of_a_wrong_one_not():
    rng = np.random.default_rng(0)
    y = rng.normal(size=500)
    right = calibration.pit_uniformity(stats.norm.cdf(y))
    wrong = calibration.pit_uniformity(stats.norm.cdf(y, scale=0.5))
    assert right["p_value"] > 0.05 > wrong["p_value"]
    assert sum(right["counts"]) == 500
    # Too narrow: too many targets in the outermost bins.
    assert min(wrong["counts"][0], wrong["counts"][-1]) > 2 * max(wrong["counts"][1:-1])


def test_the_distance_from_uniform_is_the_largest_gap_of_the_distribution_functions():
    assert calibration.pit_uniformity([0.5, 0.5])["distance"] == pytest.approx(0.5)
    assert calibration.pit_uniformity([0.1, 0.2, 0.3, 0.4])["distance"] == pytest.approx(0.6)


def test_the_best_factor_of_a_gaussian_is_the_deviation_of_its_standardised_errors():
    z = np.random.default_rng(1).normal(0, 1.7, 200)

    def nll(factor):
        return -stats.norm.logpdf(z, scale=factor).mean()

    assert calibration.fit_scale(nll) == pytest.approx(np.sqrt(np.mean(z**2)), rel=1e-4)


def test_a_factor_that_nothing_determines_is_refused():
    with pytest.raises(ValueError, match="determine no factor"):
        calibration.fit_scale(lambda factor: np.log(factor))  # All errors are zero.
    with pytest.raises(ValueError, match="finite NLL"):
        calibration.fit_scale(lambda factor: np.inf)


def test_the_rank_of_a_conformal_threshold_is_that_of_n_plus_one():
    assert calibration.conformal_quantile(np.arange(1, 20), 0.9) == 18
    assert calibration.conformal_quantile(np.arange(1, 9), 0.9) == np.inf


def test_intervals_hold_exactly_the_numbers_whose_score_is_at_most_the_threshold():
    rng = np.random.default_rng(0)
    low, y = rng.normal(size=(2, 300))
    high, middle = low + rng.exponential(size=300), low + 0.3
    for threshold in (-0.2, 0.0, 0.7):
        ends = of_ends("quantiles", 0.9, low, high, y)
        held = (y >= low - threshold) & (y <= high + threshold)
        np.testing.assert_array_equal(ends.scores <= threshold, held)
        np.testing.assert_allclose(ends.size(threshold), high - low + 2 * threshold)
    assert ends.describe(ends.size(-9)) == {"num_empty": 300}
    distance = of_distance(0.9, middle, high - low, y)
    held = np.abs(y - middle) <= 0.7 * (high - low)
    np.testing.assert_array_equal(distance.scores <= 0.7, held)
    np.testing.assert_allclose(distance.size(0.7), 1.4 * (high - low))
    assert of_distance(0.9, middle, 0 * low, y).reason
