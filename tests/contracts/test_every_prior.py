"""The contract of families of priors, over all that the registry has."""

import jax
import numpy as np
import pytest
import scipy.stats

from ensemble import registry
from ensemble.priors import named

SHAPE = (3, 3, 8, 16)
FAMILIES = {
    "normal": lambda scale, _: scipy.stats.norm(0, scale),
    "laplace": lambda scale, _: scipy.stats.laplace(0, scale),
    "student_t": lambda scale, df: scipy.stats.t(df, 0, scale),
}
"""The families whose values are independent, as SciPy has them."""


@pytest.fixture(params=registry.PRIORS)
def prior(request):
    """A family, its name, and its further number, NaN where it has none."""
    family = named(request.param)
    setting = family.setting
    value = float("nan") if setting is None else float(setting.example)
    assert setting is None or setting.is_valid(value)
    return request.param, family, value


def test_draws_have_the_deviation_that_is_said_and_are_centred(prior):
    _, family, setting = prior
    draws = np.asarray(family.sample(jax.random.key(0), (*SHAPE[:2], 40, 400), 0.7, setting))
    assert draws.dtype == np.float32
    expected = family.standard_deviation(0.7, setting)
    assert draws.std() == pytest.approx(expected, rel=0.05)
    by_filter = draws.mean(axis=(0, 1))  # Values of one filter may be correlated, filters are not.
    assert abs(draws.mean()) < 5 * by_filter.std() / np.sqrt(by_filter.size)


def test_the_density_is_symmetric_highest_at_zero_and_scales(prior):
    _, family, setting = prior
    values = jax.random.normal(jax.random.key(1), SHAPE)
    at = family.log_density
    assert float(at(values, 1.0, setting)) == pytest.approx(float(at(-values, 1.0, setting)))
    assert at(values, 1.0, setting) < at(0 * values, 1.0, setting)
    wider = at(2 * values, 2.0, setting) - at(0 * values, 2.0, setting)
    narrow = at(values, 1.0, setting) - at(0 * values, 1.0, setting)
    assert float(wider) == pytest.approx(float(narrow), rel=1e-4)


def test_gradients_are_finite_at_zero_and_far_from_it(prior):
    _, family, setting = prior
    for size in (0.0, 1e4):
        slope = jax.grad(family.log_density)(jax.numpy.full(SHAPE, size), 0.5, setting)
        assert np.isfinite(slope).all()


def test_the_density_is_scipy_s_up_to_a_constant(prior):
    name, family, setting = prior
    if name == "correlated_normal":
        pytest.skip(f"SciPy has no {name}")
    its = FAMILIES[name](0.7, setting)
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    found = family.log_density(values, 0.7, setting) - family.log_density(0 * values, 0.7, setting)
    expected = np.sum(its.logpdf(values.astype(float)) - its.logpdf(0))
    assert float(found) == pytest.approx(expected, rel=1e-4)
    assert family.standard_deviation(0.7, setting) == pytest.approx(its.std(), rel=1e-6)
