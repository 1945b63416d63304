"""Calibration of numbers: the PIT, one factor of the scale, conformal intervals."""

import numpy as np
import pytest
from scipy import stats

from ensemble import metrics
from ensemble.metrics import number_calibration as calibration


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


def test_the_rank_of_a_conformal_threshold_is_that_of_sets_of_classes():
    assert calibration.conformal_quantile(np.arange(1, 20), 0.9) == 18
    assert calibration.conformal_quantile(np.arange(1, 9), 0.9) == np.inf
    rng = np.random.default_rng(2)
    log_probs = np.log(rng.dirichlet(np.ones(3), 40))
    labels = rng.integers(3, size=40)
    scores = -log_probs[np.arange(40), labels]
    expected = metrics.conformal_threshold(log_probs, labels)
    assert calibration.conformal_quantile(scores, 0.9) == expected


def test_intervals_hold_exactly_the_numbers_whose_score_is_at_most_the_threshold():
    rng = np.random.default_rng(3)
    y, middle = rng.normal(size=(2, 300))
    low, high = middle - rng.exponential(size=300), middle + rng.exponential(size=300)
    for threshold in (-0.4, 0.0, 0.7):
        made = calibration.quantile_intervals(low, high, threshold)
        expected = calibration.quantile_scores(low, high, y) <= threshold
        np.testing.assert_array_equal(made.hold(y), expected)
    assert (calibration.quantile_intervals(low, high, -9).widths == 0).all()  # Empty.
    made = calibration.distance_intervals(middle, high - low, 0.7)
    expected = calibration.distance_scores(middle, high - low, y) <= 0.7
    np.testing.assert_array_equal(made.hold(y), expected)
