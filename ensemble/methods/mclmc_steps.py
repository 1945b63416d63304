"""Steps of MCLMC at little cost: BlackJAX's dynamics on one vector of all parameters.

BlackJAX's kernel joins and splits the tree of parameters several times a step, and always draws the
two momenta that a refused step would need. For small networks this takes as long as a gradient.
Here the parameters are joined once for many steps. The numbers are those of BlackJAX's kernel,
except after a step into NaN.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from blackjax.mcmc.integrators import (
    IntegratorState,
    isokinetic_mclachlan,
    with_isokinetic_maruyama,
)
from blackjax.mcmc.mclmc import MCLMCInfo
from blackjax.util import generate_unit_vector
from jax.flatten_util import ravel_pytree

from ensemble.methods.threefry import unrolled


def join(state: IntegratorState) -> tuple[IntegratorState, Callable[[jax.Array], Any]]:
    """A state whose position, momentum and gradient are vectors [P], and what splits vectors."""
    position, split = ravel_pytree(state.position)
    momentum, grads = (ravel_pytree(tree)[0] for tree in (state.momentum, state.logdensity_grad))
    return IntegratorState(position, momentum, state.logdensity, grads), split


def separate(state: IntegratorState, split: Callable[[jax.Array], Any]) -> IntegratorState:
    """The inverse of `join`."""
    position, momentum, log_density, grads = state
    return IntegratorState(split(position), split(momentum), log_density, split(grads))


def step(
    rng_key: jax.Array,
    state: IntegratorState,
    logdensity_fn: Callable[[Any], jax.Array],
    inverse_mass_matrix: jax.Array,
    L: jax.Array,
    step_size: jax.Array,
) -> tuple[IntegratorState, MCLMCInfo]:
    """One step, with the arguments and results of `blackjax.mcmc.mclmc.build_kernel()`.

    A step into NaN is not taken: the momentum is drawn anew.

    Args:
        rng_key: of the step.
        state: of the chain, with the parameters as a tree or a vector.
        logdensity_fn: from such a position to nats.
        inverse_mass_matrix: diagonal, [P].
        L: the length in which the momentum is forgotten.
        step_size: of the integrator.
    """
    key_noise, _, _ = jax.random.split(unrolled(rng_key), 3)  # As BlackJAX splits it.
    move = with_isokinetic_maruyama(isokinetic_mclachlan(logdensity_fn, inverse_mass_matrix))
    moved, kinetic_change = move(state, step_size, L, key_noise)
    energy_change = kinetic_change - moved.logdensity + state.logdensity
    scalars = (moved.logdensity, kinetic_change, energy_change)
    is_finite = jnp.all(jnp.isfinite(jnp.stack(scalars)))
    for leaf in jax.tree.leaves((moved.position, moved.momentum)):
        is_finite &= jnp.all(jnp.isfinite(leaf))
    # By numbers that the refused step was to end with, so that no others are drawn.
    _, key_refreshed = jax.random.split(key_noise)
    refused = state._replace(momentum=generate_unit_vector(key_refreshed, state.position))
    state, log_density, kinetic_change, energy_change = jax.tree.map(
        lambda taken, other: jnp.where(is_finite, taken, other),
        (moved, *scalars),
        (refused, state.logdensity, *map(jnp.zeros_like, scalars[1:])),
    )
    return state, MCLMCInfo(log_density, kinetic_change, energy_change, is_finite)
