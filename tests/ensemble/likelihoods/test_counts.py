"""Counts: which targets are some, large ones in float32, and mixtures that are scored by sums."""

import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
import scipy.stats

from ensemble import UserError
from ensemble.likelihoods import named
from ensemble.likelihoods.counts import negative_binomial_cdf, poisson_cdf
from ensemble.report.advantage import beaten
from ensemble.scoring.sections import values_of

DRAWN = np.random.default_rng(0).negative_binomial(3, 0.1, 2000).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "target", "what"),
    [
        ("poisson", -1, "hold -1: set"),
        ("poisson", 0.5, "0 to 16777216.*hold 0.5"),
        ("negative_binomial", 2**24 + 2, "hold 1.67772e"),
        ("log_normal", 0, "positive numbers.*hold 0"),
    ],
)
def test_targets_of_another_kind_are_refused(name, target, what):
    with pytest.raises(UserError, match=what):
        named(name).of_data(np.array([1, 2, 3, target], np.float32), ())


@pytest.mark.parametrize(
    "forged", [{"target_shift": -1.0}, {"target_low": -3.0, "target_high": 2.0}]
)
def test_a_forged_description_is_refused(forged):
    description = named("poisson").of_data(DRAWN, ()).describe()
    with pytest.raises(ValueError, match="must be of counts"):
        named("poisson").described(description | forged)


@pytest.mark.check
def test_float32_holds_the_cdf_of_a_million():
    k = np.arange(995_000, 1_005_000, 250)
    found = poisson_cdf(jnp.float32(k), jnp.float32(1e6))
    np.testing.assert_allclose(found, scipy.stats.poisson(1e6).cdf(k), atol=2e-5)


@pytest.mark.soak
@pytest.mark.parametrize("rate", [5, 1e4])
def test_float32_holds_the_cdf_of_few_and_of_many(rate):
    k = np.unique(np.floor(np.maximum(0, rate + np.sqrt(rate) * np.linspace(-5, 5, 40))))
    found = poisson_cdf(jnp.float32(k), jnp.float32(rate))
    np.testing.assert_allclose(found, scipy.stats.poisson(rate).cdf(k), atol=2e-5)
    for size in (0.3, 3, 30, 1e6):
        its = scipy.stats.nbinom(size, size / (size + rate))
        k = np.unique(its.ppf(np.linspace(1e-4, 1 - 1e-4, 40)))
        found = negative_binomial_cdf(jnp.float32(k), jnp.float32(rate), jnp.float32(size))
        np.testing.assert_allclose(found, its.cdf(k), atol=5e-3)


@pytest.mark.check
def test_float32_holds_probabilities_of_large_counts():
    likelihood = named("negative_binomial").of_data(1000 * DRAWN, ())
    parts = {"rate": jnp.float32(30_000), "dispersion": jnp.float32(1e-4)}
    counts = np.arange(28_000, 32_000, 37)
    its = scipy.stats.nbinom(1e4, 1 / 4)
    found = likelihood.log_density(parts, jnp.float32(counts), jnp, jax.scipy.special)
    np.testing.assert_allclose(found, its.logpmf(counts), atol=2e-3)  # Of some -1e5.


def test_the_pit_is_uniform_and_intervals_hold_at_least_what_they_say():
    likelihood = named("negative_binomial").of_data(DRAWN, ())
    rng = np.random.default_rng(1)
    rate = rng.uniform(0.5, 6, (2, 4000))
    arrays = {"rate": rate, "dispersion": np.full_like(rate, 0.4)}
    member = rng.integers(2, size=4000)
    drawn = rng.poisson(rate[member, np.arange(4000)] * rng.gamma(2.5, 0.4, 4000))
    mixture = likelihood.distribution(arrays)
    pit = mixture.pit(drawn)
    assert scipy.stats.kstest(pit, "uniform").pvalue > 0.01
    np.testing.assert_array_equal(pit, mixture.pit(drawn))
    scores = values_of(likelihood.view(arrays, drawn))
    for level in (0.5, 0.9, 0.95):
        assert scores[f"coverage_{100 * level:.0f}"] > level - 0.01


def test_a_constant_has_the_probabilities_of_counts():
    likelihood = named("poisson").of_data(DRAWN, ())
    found = beaten(likelihood, DRAWN, DRAWN[:100])
    its = scipy.stats.poisson(DRAWN.mean(dtype=float))
    assert found.loss == pytest.approx(-its.logpmf(DRAWN[:100]).mean(), rel=1e-5)


def test_the_crps_of_counts_that_spread_far_is_near_the_whole_sum():
    likelihood = named("poisson").of_data(DRAWN, ())
    arrays, targets = {"rate": np.array([[9000.0, 2.0], [9600.0, 3.0]])}, np.array([9300, 9000])
    found = likelihood.distribution(arrays).crps(targets)
    k = np.arange(20_000.0)[:, None]
    cdf = scipy.stats.poisson(arrays["rate"][:, None]).cdf(k).mean(axis=0)
    np.testing.assert_allclose(found, np.sum((cdf - (k >= targets)) ** 2, axis=0), rtol=2e-3)
