"""Chains that do not wait take the draws of BlackJAX's NUTS, each its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.metrics import LowRankInverseMassMatrix, default_metric
from run_parts import mesh_of

from ensemble import pytrees
from ensemble.methods import low_rank_mass
from ensemble.methods.kernels import DrawInfo, Settings, make_sampler
from ensemble.numpyro_models.free_chains import run_on_devices, times

# Rounding grows with every draw, to 5e-3 by the 25th; a trajectory may then end elsewhere.
NUM_CHAINS = 3
NUM_WARMUP = 20
NUM_DRAWS = 24
THIN = 2
SCALES = jnp.array([0.3, 1.0, 2.0])


def log_density(position):
    """Skewed in the one, of very different widths in the other: so that trees differ."""
    return position["a"] - jnp.exp(position["a"]) - 0.5 * jnp.sum((position["b"] / SCALES) ** 2)


def start():
    keys = jax.random.split(jax.random.key(3), NUM_CHAINS)
    positions = {"a": jnp.zeros(NUM_CHAINS), "b": jnp.full((NUM_CHAINS, 3), 0.05)}
    return keys, positions


def settings(mass):
    return Settings("nuts", step_size=0.2, num_warmup=NUM_WARMUP, mass=mass)


def num_kept(t):
    return jnp.maximum(t - NUM_WARMUP, 0) // THIN


def in_lockstep(mass):
    """All chains draw by draw, by the plain kernel."""
    sampler = make_sampler(settings(mass), log_density)

    def run(keys, positions):
        def draw(chains, t):
            chains, info = jax.vmap(sampler.step, in_axes=(0, 0, None))(keys, chains, t)
            return chains, (info, chains.state.position)

        chains = jax.vmap(sampler.init)(keys, positions)
        return jax.lax.scan(draw, chains, jnp.arange(NUM_DRAWS))

    return jax.jit(run)(*start())


def freely(mass, chunks):
    """The same chains in chunks of draws, none waiting for another."""
    sampler = make_sampler(settings(mass), log_density)
    free = mesh_of(1, 1), settings(mass), lambda data: log_density
    run = functools.partial(run_on_devices, *free, lambda *found: found, num_kept, None)
    keys, positions = start()
    chains = jax.vmap(sampler.init)(keys, positions)
    recorded = []
    for first, end in chunks:
        places = int(num_kept(end) - num_kept(first))
        kept = {
            "a": jnp.zeros((places + 1, NUM_CHAINS)),  # One place, at least.
            "b": jnp.zeros((places + 1, NUM_CHAINS, 3)),
        }
        record = DrawInfo(*jnp.zeros((6, end - first, NUM_CHAINS))), kept
        chains, record = jax.jit(run)(keys, chains, record, np.int32(first), np.int32(end))
        recorded.append((record[0], pytrees.at(record[1], slice(places))))
    return chains, *jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *recorded)


@pytest.mark.check
@pytest.mark.parametrize("mass", ["diagonal"])
def test_draws_are_those_of_chains_in_lockstep_whatever_the_chunks(mass):
    chains, (info, positions) = in_lockstep(mass)
    free, numbers, kept_positions = freely(mass, [(0, 9), (9, NUM_DRAWS)])
    steps = np.asarray(info.num_gradients)
    np.testing.assert_array_equal(numbers.num_gradients, steps)
    # Else nothing is shown: chains differ within a draw, and one is ahead at times.
    assert np.ptp(steps, axis=1).max() > 10
    for found, leaf in zip(numbers[:-1], info[:-1], strict=True):
        np.testing.assert_allclose(found, leaf, rtol=0.05, atol=0.05)
    kept = np.arange(NUM_WARMUP, NUM_DRAWS)[THIN - 1 :: THIN]
    for name, leaf in positions.items():
        np.testing.assert_allclose(kept_positions[name], leaf[kept], rtol=0.05, atol=0.05)
    for one, other in zip(jax.tree.leaves(free.state), jax.tree.leaves(chains.state), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
    masses = (one.adaptation.mass.inverse_mass_matrix for one in (free, chains))
    np.testing.assert_allclose(*masses, rtol=0.05)


@pytest.mark.check
def test_a_break_in_the_warm_up_changes_no_bit():
    whole = freely("diagonal", [(0, NUM_DRAWS)])
    broken = freely("diagonal", [(0, 9), (9, NUM_WARMUP - 3), (NUM_WARMUP - 3, NUM_DRAWS)])
    jax.tree.map(np.testing.assert_array_equal, whole, broken)


def test_velocities_are_those_of_the_metric_of_blackjax():
    rng = np.random.default_rng(1)
    draws, grads = rng.normal(size=(2, 25, 7)).astype("f4")
    before = jax.tree.map(np.asarray, low_rank_mass.start(7, 1).inverse_mass_matrix)
    fitted = low_rank_mass.fit(draws, -draws * np.arange(1, 8) + 0.1 * grads, before)
    mass = LowRankInverseMassMatrix(*map(jnp.asarray, fitted))
    momentum = jnp.arange(7.0)
    velocity = jax.grad(default_metric(mass).kinetic_energy)(momentum)
    np.testing.assert_allclose(times(mass, momentum), velocity, rtol=1e-4)
