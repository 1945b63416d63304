"""Steps of MCLMC are BlackJAX's, and one into NaN is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc import mclmc

from ensemble.methods import mclmc as ours

POSITION = {"a": jnp.array([0.3, -1.0, 2.0]), "b": jnp.array([[0.5, 1.5]])}
SETTINGS = {"inverse_mass_matrix": jnp.arange(1.0, 6.0), "L": 2.0, "step_size": 0.2}


def log_density(position):
    return -jnp.sum(position["a"] ** 4) - jnp.sum(jnp.cosh(position["b"]))


@pytest.mark.check
def test_a_joined_step_is_that_of_blackjax():
    before = mclmc.init(POSITION, log_density, jax.random.key(1))
    joined, of_vector, separate = ours.join(before, log_density)

    @jax.jit
    def both(key):
        expected = mclmc.build_kernel()(key, before, log_density, **SETTINGS)
        after, info = ours.step(key, joined, of_vector, **SETTINGS)
        return expected, (separate(after), info)

    expected, found = both(jax.random.key(2))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *(expected, found)
    )
    assert not np.allclose(found[0].position["a"], POSITION["a"])


@pytest.mark.check
def test_a_step_into_nan_is_not_taken_and_the_momentum_is_drawn_anew():
    before, *_ = ours.join(mclmc.init(POSITION, log_density, jax.random.key(1)), log_density)
    after, info = jax.jit(
        lambda key: ours.step(key, before, lambda x: jnp.sum(x) * jnp.nan, **SETTINGS)
    )(jax.random.key(2))
    np.testing.assert_array_equal(after.position, before.position)
    assert (after.logdensity, bool(info.nonans)) == (before.logdensity, False)
    assert (info.energy_change, info.kinetic_change) == (0, 0)
    np.testing.assert_allclose(np.sum(np.square(after.momentum)), 1, rtol=1e-5)
    assert not np.allclose(after.momentum, before.momentum)
