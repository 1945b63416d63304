"""The log densities against SciPy's, far out too, and how one's own joins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from ensemble import InputError
from ensemble.random_walk import densities


def test_fast_powers_and_logarithms_are_right():
    x = np.linspace(-126, 126.9, 100_001).astype(np.float32)
    np.testing.assert_allclose(
        jax.jit(densities.fast_exp2)(x), np.exp2(x.astype(np.float64)), rtol=2e-7
    )
    x = np.concatenate([np.exp2(x), np.linspace(0.7, 1.5, 10_001).astype(np.float32)])
    np.testing.assert_allclose(
        jax.jit(densities.fast_log2)(x), np.log2(x.astype(np.float64)), rtol=4e-7
    )
    ends = densities.fast_exp2(jnp.array([-np.inf, -1000.0, 127.6, 1e9, np.inf, np.nan]))
    np.testing.assert_array_equal(ends, np.exp2([-126.0, -126.0, 127.0, 127.0, 127.0, np.nan]))


def test_the_mixture_is_that_of_scipy():
    weights, locs, scales = (
        getattr(densities, f"MIXTURE_{one}") for one in ("WEIGHTS", "LOCS", "SCALES")
    )
    logdensity_fn = densities.GAUSSIAN_MIXTURE.logdensity_fn
    offsets = np.concatenate([np.linspace(-12, 12, 241), [-1e3, 1e3]])
    x = np.add.outer(locs, np.multiply.outer(np.unique([*scales, 1]), offsets)).ravel()
    x = np.concatenate([x, [-1e4, 1e4]]).astype(np.float32)
    components = scipy.stats.norm(locs, scales)
    expected = scipy.special.logsumexp(
        np.log(weights) + components.logpdf(x[:, None].astype(np.float64)), axis=1
    )
    found = jax.jit(logdensity_fn)(x[:, None])
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-5)
    # Beyond float32's range.
    assert np.isneginf(logdensity_fn(jnp.array([[-1e30], [1e30], [np.inf]]))).all()
    assert np.isnan(logdensity_fn(jnp.array([[np.nan]]))).all()


def test_the_correlated_gaussian_is_that_of_scipy():
    density = densities.CORRELATED_GAUSSIAN
    index = np.arange(density.num_dims)
    covariance = 0.9 ** np.abs(index[:, None] - index)
    points = np.random.default_rng(0).normal(size=(20, density.num_dims)).astype(np.float32)
    expected = scipy.stats.multivariate_normal(cov=covariance).logpdf(points)
    found = np.asarray(density.logdensity_fn(jnp.asarray(points)))
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-4, atol=1e-3)


def test_a_density_can_bring_its_starts():
    def start_fn(rng_key, num_chains):
        return jax.random.uniform(rng_key, (num_chains, 3), minval=2, maxval=3)

    density = densities.Density(lambda x: -jnp.sum(x, axis=-1), 3, start_fn=start_fn)
    starts = density.start(jax.random.key(0), 100)
    np.testing.assert_array_equal(starts, start_fn(jax.random.key(0), 100))
    wrong = densities.Density(lambda x: -x[:, 0], 2, start_fn=start_fn)
    with pytest.raises(InputError, match=r"start_fn.*\[5, 3\].*\[5, 2\]"):
        wrong.start(jax.random.key(0), 5)
