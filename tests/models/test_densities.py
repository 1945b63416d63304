"""The log densities against SciPy's, far out too, and how one's own joins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from ensemble import UserError
from models import densities


def test_fast_powers_and_logarithms_are_right():
    x = np.linspace(-126, 126.9, 100_001).astype(np.float32)
    np.testing.assert_allclose(
        jax.jit(densities.fast_exp2)(x), np.exp2(x.astype(np.float64)), rtol=2e-7
    )
    x = np.concatenate([np.exp2(x), np.linspace(0.7, 1.5, 10_001).astype(np.float32)])
    np.testing.assert_allclose(
        jax.jit(densities.fast_log2)(x), np.log2(x.astype(np.float64)), rtol=4e-7
    )
    low = densities.fast_exp2(jnp.array([-np.inf, -1000.0, np.nan]))
    np.testing.assert_array_equal(low, [2.0**-126, 2.0**-126, np.nan])


def test_the_mixture_is_that_of_scipy():
    x = np.concatenate([np.linspace(-30, 40, 201), [-1e4, 1e4]])
    components = scipy.stats.norm(densities.MIXTURE_LOCS, densities.MIXTURE_SCALES)
    expected = scipy.special.logsumexp(
        np.log(densities.MIXTURE_WEIGHTS) + components.logpdf(x[:, None]), axis=1
    )
    found = densities.create("gaussian_mixture").logdensity_fn(jnp.asarray(x[:, None], jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-5)


def test_weights_are_normalised_and_a_tie_of_the_widest_is_refused():
    x = jnp.array([[0.3], [2.0]])
    double = densities.gaussian_mixture((2, 6), (0, 1), (1, 2))(x)
    np.testing.assert_allclose(
        double, densities.gaussian_mixture((0.25, 0.75), (0, 1), (1, 2))(x), rtol=1e-6
    )
    with pytest.raises(UserError, match="must have one that is larger than all others"):
        densities.gaussian_mixture((0.5, 0.5), (0, 1), (2, 2))


def test_the_correlated_gaussian_is_that_of_scipy():
    density = densities.create("correlated_gaussian")
    index = np.arange(density.num_dims)
    covariance = 0.9 ** np.abs(index[:, None] - index)
    points = np.random.default_rng(0).normal(size=(20, density.num_dims)).astype(np.float32)
    expected = scipy.stats.multivariate_normal(cov=covariance).logpdf(points)
    found = np.asarray(density.logdensity_fn(jnp.asarray(points)))
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", densities.names())
def test_starts_are_wider_than_the_target(name):
    density = densities.create(name)
    starts = density.start(jax.random.key(0), 1000)
    assert starts.shape == (1000, density.num_dims)
    assert np.std(starts) == pytest.approx(density.start_scale, rel=0.1)
    assert np.isfinite(density.logdensity_fn(starts)).all()


def test_a_density_of_ones_own_joins(monkeypatch):
    monkeypatch.setattr(densities, "_densities", dict(densities._densities))
    mine = densities.Density(lambda x: -jnp.sum(jnp.abs(x), axis=-1), num_dims=2)
    densities.register("mine", mine)
    assert densities.create("mine") is mine
    assert "mine" in densities.names()
    with pytest.raises(UserError, match=r"density='other' is not .*gaussian_mixture, mine, or"):
        densities.create("other")
