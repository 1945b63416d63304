"""Priors: densities and draws against SciPy's distributions, and slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from ensemble.config import pieces
from ensemble.priors import parse_prior

SCALE = 0.7
DF = 4.0
PRIORS = {
    "normal(0.7)": scipy.stats.norm(0, SCALE),
    "laplace(0.7)": scipy.stats.laplace(0, SCALE),
    "student_t(0.7, df=4)": scipy.stats.t(DF, 0, SCALE),
}
"""The distribution of each value in SciPy."""
CORRELATED = "correlated_normal(0.7, length=1.5)"
SHAPE = (3, 3, 8, 16)


def test_every_prior_is_here():
    names = {spec.partition("(")[0] for spec in (*PRIORS, CORRELATED)}
    assert set(pieces.PRIORS.names) == names


@pytest.mark.parametrize("spec", PRIORS)
def test_densities_and_draws_are_those_of_scipy(spec):
    (prior,) = parse_prior(spec)
    its = PRIORS[spec]
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    found = [prior.log_density(one) for one in (values, 0 * values)]
    expected = np.sum(its.logpdf(np.float64(values)) - its.logpdf(0))
    assert float(found[0] - found[1]) == pytest.approx(expected, rel=1e-4)
    assert prior.standard_deviation(SHAPE) == pytest.approx(its.std(), rel=1e-6)
    draws = prior.sample(jax.random.key(0), (4000,))
    assert draws.dtype == jnp.float32
    assert scipy.stats.kstest(draws, its.cdf).pvalue > 1e-3


def test_neighbours_in_a_filter_are_correlated_and_filters_are_not():
    (prior,) = parse_prior(CORRELATED)
    at = np.stack(np.meshgrid(range(3), range(3), indexing="ij"), axis=-1).reshape(9, 2)
    distances = np.linalg.norm(at[:, None] - at[None], axis=-1)
    covariance = SCALE**2 * np.exp(-distances / 1.5)
    draws = np.asarray(prior.sample(jax.random.key(0), (3, 3, 40, 400)))
    flat = draws.reshape(9, -1)
    np.testing.assert_allclose(flat @ flat.T / flat.shape[1], covariance, atol=0.02)
    assert abs(np.mean(draws[..., ::2, :] * draws[..., 1::2, :])) < 0.02
    assert prior.standard_deviation(SHAPE) == pytest.approx(SCALE)
    values = draws[:, :, :2, :5]
    found = [prior.log_density(one) for one in (values, 0 * values)]
    whitened = scipy.linalg.solve(covariance, values.reshape(9, -1))
    expected = -0.5 * np.sum(values.reshape(9, -1) * whitened)
    assert float(found[0] - found[1]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("spec", [*PRIORS, CORRELATED])
@pytest.mark.parametrize("size", [0.0, 1e4])
def test_slopes_are_finite_at_zero_and_far_from_it(spec, size):
    (prior,) = parse_prior(spec)
    assert np.isfinite(jax.grad(prior.log_density)(jnp.full(SHAPE, size))).all()
