"""The PIT of censored targets, against SciPy's estimator of Kaplan and Meier and its tests."""

import numpy as np
import pytest
import scipy.stats

from ensemble.metrics import censoring

RNG = np.random.default_rng(0)
PIT, BOUNDS = RNG.random(60), RNG.uniform(0.2, 1.5, 60)
CENSORED, SEEN = PIT > BOUNDS, np.minimum(PIT, BOUNDS)


def test_the_curve_is_that_of_scipy():
    curve = censoring.kaplan_meier(SEEN, CENSORED)
    data = scipy.stats.CensoredData.right_censored(SEEN, CENSORED)
    expected = scipy.stats.ecdf(data).sf
    at = np.searchsorted(expected.quantiles, curve.values)
    np.testing.assert_allclose(1 - np.cumsum(curve.mass), expected.probabilities[at], atol=1e-12)
    assert curve.share(0.1, 0.4) == pytest.approx(
        float(expected.evaluate(np.array([0.1]))[0] - expected.evaluate(np.array([0.4]))[0])
    )
    assert censoring.kaplan_meier(np.minimum(PIT, 0.5), PIT > 0.5).share(0.05, 0.95) is None


def test_without_censored_targets_it_is_the_test_of_kolmogorov_and_smirnov():
    found = censoring.pit_uniformity(PIT, np.zeros(60, bool))
    expected = scipy.stats.kstest(PIT, "uniform", method="asymp")
    assert found["distance"] == pytest.approx(expected.statistic)
    assert found["p_value"] == pytest.approx(expected.pvalue, abs=0.05)
    np.testing.assert_allclose(found["counts"], np.histogram(PIT, 10, (0, 1))[0])


def test_distributions_that_are_wrong_are_told():
    assert censoring.pit_uniformity(SEEN, CENSORED)["p_value"] > 0.05
    wrong = RNG.random(300) ** 2
    bounds = RNG.uniform(0.2, 1.5, 300)
    seen = np.minimum(wrong, bounds)
    assert censoring.pit_uniformity(seen, wrong > bounds)["p_value"] < 1e-6
