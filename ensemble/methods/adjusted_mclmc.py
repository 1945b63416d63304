"""Adjusted MCLMC: microcanonical dynamics, which move at a constant speed, with rejections.

A draw takes a new direction, follows the dynamics without noise, and accepts the end or stays where
it was (Robnik, Cohn-Gordon and Seljak 2025, arXiv:2503.01707). The warm-up is that of HMC.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import mclmc
from blackjax.mcmc.adjusted_mclmc import adjusted_mclmc_proposal
from blackjax.mcmc.hmc import HMCInfo, HMCState
from blackjax.mcmc.integrators import IntegratorState, isokinetic_mclachlan
from blackjax.util import generate_unit_vector

from ensemble import pytrees
from ensemble.methods.warmup import DESCENT_STEPS, descend, untuned

MAX_STEPS = 512
"""In a draw, on average: with two gradients each, as many gradients as nuts takes."""
_QUARTER_TURN = np.pi / 2

_Transition = Callable[..., tuple[HMCState, HMCInfo, jax.Array]]


def num_steps(num_params: int, step_size: jax.Array) -> jax.Array:
    """How many steps a draw should have on average, where lengths are in standard deviations.

    A quarter turn about a normal density of P parameters is pi / 2 * sqrt(P) long.

    Args:
        num_params: P.
        step_size: of the integrator.
    """
    return jnp.minimum(_QUARTER_TURN * num_params**0.5 / step_size, MAX_STEPS)


def lead(
    rng_key: jax.Array,
    state: HMCState,
    logdensity_fn: Callable[[Any], jax.Array],
    step_size: float,
) -> HMCState:
    """Leads a chain to where the density is: far from it nothing would be accepted.

    At a log density of -1e9, float32 rounds by 64 nats.

    Args:
        rng_key: of the directions.
        state: where the chain starts.
        logdensity_fn: from a position to nats.
        step_size: of the first step.
    """
    key_momentum, key_steps = jax.random.split(rng_key)
    start = IntegratorState(
        state.position, generate_unit_vector(key_momentum, state.position), *state[1:]
    )
    found = descend(
        key_steps,
        start,
        untuned(state.position, step_size),
        mclmc.build_kernel(),
        logdensity_fn,
        jnp.int32(DESCENT_STEPS),
    )
    return HMCState(found.position, found.logdensity, found.logdensity_grad)


def make_transition(
    logdensity_fn: Callable[[Any], jax.Array], max_energy_error: float
) -> _Transition:
    """Makes a draw: `(rng_key, state, step_size, inverse_mass [P], num_steps) -> (state, info,
    energy_error)`, of BlackJAX's states and infos and an error in nats.

    Args:
        logdensity_fn: from a position to nats.
        max_energy_error: above which a draw is divergent, nats.
    """

    def draw(
        rng_key: jax.Array,
        state: HMCState,
        step_size: jax.Array,
        inverse_mass: jax.Array,
        num_steps: jax.Array,
    ) -> tuple[HMCState, HMCInfo, jax.Array]:
        one_step = isokinetic_mclachlan(logdensity_fn, inverse_mass)
        propose = adjusted_mclmc_proposal(
            lambda state, step_size, *_: one_step(state, step_size),  # No noise on the way.
            step_size,
            jnp.inf,
            num_steps,
            max_energy_error,
            sample_proposal=_accept_or_reject,
        )
        key_momentum, key_accept = jax.random.split(rng_key)
        momentum = generate_unit_vector(key_momentum, state.position)
        moved, info, energy_error = propose(
            key_accept, IntegratorState(state.position, momentum, *state[1:])
        )
        state = HMCState(moved.position, moved.logdensity, moved.logdensity_grad)
        return state, info, energy_error

    return draw


def _accept_or_reject(
    rng_key: jax.Array, log_acceptance: jax.Array, old: Any, new: Any
) -> tuple[Any, tuple[jax.Array, jax.Array, jax.Array]]:
    """The rule of Metropolis and Hastings; BlackJAX's own does not tell the energy error."""
    acceptance_rate = jnp.exp(jnp.minimum(log_acceptance, 0))
    is_accepted = jax.random.bernoulli(rng_key, acceptance_rate)
    state = pytrees.where(is_accepted, new, old)
    return state, (is_accepted, acceptance_rate, -log_acceptance)
