"""Mixtures of members that predict a number: scores, moments and quantiles, against SciPy."""

import jax
import numpy as np
import pytest
from test_continuous import NAMES, TARGETS, predicted, scipys

from ensemble.likelihoods.mixture_density import MixtureDensity
from ensemble.likelihoods.number_prediction import LEVELS
from ensemble.scoring.sections import values_of


@pytest.mark.parametrize("name", NAMES)
def test_a_single_member_is_scored_as_its_distribution(name):
    likelihood, arrays = predicted(name)
    one = {key: value[:1] for key, value in arrays.items()}
    scores, its = values_of(likelihood.view(one, TARGETS)), scipys(one)
    assert scores["nll"] == pytest.approx(-its.logpdf(TARGETS).mean(), rel=1e-9)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((one["loc"][0] - TARGETS) ** 2)))
    low, high = its.interval(0.9)
    assert scores["coverage_90"] == np.mean((low <= TARGETS) & (high >= TARGETS))
    assert scores["width_90"] == pytest.approx(np.mean(high - low), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_crps_is_the_integral_s(name):
    likelihood, arrays = predicted(name)
    found = MixtureDensity(likelihood, arrays).crps(TARGETS)
    draws = scipys(arrays).rvs((4000, 3, 40), random_state=np.random.default_rng(1))
    # Shuffled: a pair is then of any two members.
    draws = np.random.default_rng(2).permutation(draws.reshape(-1, 40))
    halves = np.abs(draws[: len(draws) // 2] - draws[len(draws) // 2 :]).mean(axis=0)
    simulated = np.abs(draws - TARGETS).mean(axis=0) - halves / 2
    np.testing.assert_allclose(found, simulated, rtol=0.06, atol=0.05)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_the_crps_of_many_estimators_needs_no_pairs(name):
    likelihood, _ = predicted(name)
    rng, shape = np.random.default_rng(3), (100, len(TARGETS))
    arrays = {"loc": rng.normal(10, 3, shape), "scale": rng.uniform(1, 4, shape)}
    weights = rng.dirichlet(np.ones(100))
    mixture = MixtureDensity(likelihood, arrays, weights)
    found, grid = mixture.crps(TARGETS), mixture._crps(TARGETS, False)
    np.testing.assert_allclose(found, grid, rtol=1e-3)
    exact = likelihood.closed_crps(arrays, TARGETS, weights)
    if exact is not None:
        np.testing.assert_allclose(found, exact, rtol=2e-6)


@pytest.mark.parametrize(("stray", "tolerance"), [((50.0, 0.1), 0.005), ((0.0, 20.0), 0.001)])
def test_the_crps_of_many_estimators_knows_a_stray_one(stray, tolerance):
    likelihood, _ = predicted("gaussian")
    rng, shape = np.random.default_rng(3), (100, len(TARGETS))
    arrays = {"loc": 0.1 * rng.normal(size=shape), "scale": np.full(shape, 0.1)}
    arrays["loc"][0], arrays["scale"][0] = stray
    targets = 0.1 * rng.normal(size=len(TARGETS))
    found = MixtureDensity(likelihood, arrays).crps(targets)
    np.testing.assert_allclose(found, likelihood.closed_crps(arrays, targets), rtol=tolerance)


@pytest.mark.check
@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_has_the_mixture_s_moments_and_quantiles(name):
    likelihood, arrays = predicted(name)
    found, its = likelihood.prediction(arrays, None), scipys(arrays)
    np.testing.assert_allclose(found.mean, its.mean().mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.aleatoric, its.var().mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found.epistemic, its.mean().var(axis=0), rtol=1e-4)
    total = found.aleatoric + found.epistemic
    np.testing.assert_allclose(found.standard_deviation**2, total, rtol=1e-6)
    for level, values in zip(LEVELS, found.quantiles.T, strict=True):
        np.testing.assert_allclose(its.cdf(values).mean(axis=0), level, atol=1e-6)
    exported = jax.jit(likelihood.exported)(arrays, None)
    for key in ("mean", "standard_deviation", "aleatoric", "epistemic", "quantiles"):
        np.testing.assert_allclose(exported[key], getattr(found, key), rtol=1e-3, atol=2e-3)
    np.testing.assert_array_equal(exported["member_loc"], arrays["loc"])
