"""Steps of NUTS as a machine."""

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.metrics import LowRankInverseMassMatrix, default_metric

from ensemble.methods import low_rank_mass
from ensemble.numpyro_models.nuts_steps import times


def test_velocities_are_those_of_the_metric_of_blackjax():
    rng = np.random.default_rng(1)
    draws, grads = rng.normal(size=(2, 25, 7)).astype("f4")
    before = jax.tree.map(np.asarray, low_rank_mass.start(7, 1).inverse_mass_matrix)
    fitted = low_rank_mass.fit(draws, -draws * np.arange(1, 8) + 0.1 * grads, before)
    mass = LowRankInverseMassMatrix(*map(jnp.asarray, fitted))
    momentum = jnp.arange(7.0)
    velocity = jax.grad(default_metric(mass).kinetic_energy)(momentum)
    np.testing.assert_allclose(times(mass, momentum), velocity, rtol=1e-4)
