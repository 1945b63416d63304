"""Priors: densities and draws against SciPy's distributions, and slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ensemble.config import prior_text
from ensemble.priors import parse_prior

SCALE = 0.7
DF = 4.0
PRIORS = {
    "normal(0.7)": scipy.stats.norm(0, SCALE),
    "laplace(0.7)": scipy.stats.laplace(0, SCALE),
    "student_t(0.7, df=4)": scipy.stats.t(DF, 0, SCALE),
}
"""The distribution of each value in SciPy."""
SHAPE = (3, 3, 8, 16)


def test_every_prior_is_here():
    assert set(prior_text.PRIORS.names) == {spec.partition("(")[0] for spec in PRIORS}


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


@pytest.mark.parametrize("spec", PRIORS)
@pytest.mark.parametrize("size", [0.0, 1e4])
def test_slopes_are_finite_at_zero_and_far_from_it(spec, size):
    (prior,) = parse_prior(spec)
    assert np.isfinite(jax.grad(prior.log_density)(jnp.full(SHAPE, size))).all()
