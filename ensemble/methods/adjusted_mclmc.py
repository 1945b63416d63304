"""Adjusted MCLMC: microcanonical dynamics, which move at a constant speed, with rejections.

A draw takes a new direction, follows the dynamics without noise, and accepts the end or stays where
it was (Robnik, Cohn-Gordon and Seljak 2025, arXiv:2503.01707). The warm-up is that of HMC.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import hmc, mclmc
from blackjax.mcmc.adjusted_mclmc import adjusted_mclmc_proposal
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.integrators import IntegratorState, isokinetic_mclachlan
from blackjax.util import generate_unit_vector
from jax import Array, random

from ensemble import pytrees
from ensemble.methods.kernels import (
    MAX_ENERGY_ERROR,
    TUNING,
    LogDensityFn,
    Sampler,
    Settings,
    draw_info,
    num_steps,
    windowed,
)

MAX_STEPS = 512
"""Steps of a draw, on average: with two gradients each, as many gradients as nuts takes."""
_QUARTER_TURN = np.pi / 2
_DESCENT_STEPS = 200
_DESCENT_ERROR = 0.1  # Nats of a parameter.


def make(settings: Settings, logdensity_fn: LogDensityFn, *_) -> Sampler:
    """Makes the sampler; the arguments are those of `make_sampler`.

    With a diagonal mass, lengths are in standard deviations. A quarter turn about a normal density
    of P parameters is pi / 2 * sqrt(P) long, and so is a draw on average.
    """

    def start(rng_key, position):
        state = hmc.init(position, logdensity_fn)
        if not settings.num_warmup:
            return state
        # Far from the density nothing would be accepted: at -1e9 nats, float32 rounds by 64.
        key_momentum, key_steps = random.split(random.fold_in(rng_key, TUNING))
        moving = _with_direction(key_momentum, state)
        found = _descend(key_steps, moving, settings.step_size, logdensity_fn)
        return HMCState(found.position, *found[2:])

    def transition(rng_key, before, step_size, inverse_mass, t):
        mean = (
            jnp.minimum(_QUARTER_TURN * inverse_mass.size**0.5 / step_size, MAX_STEPS)
            if settings.mass == "diagonal"
            else settings.num_leapfrog_steps
        )
        number = num_steps(settings, t, mean)
        one_step = isokinetic_mclachlan(logdensity_fn, inverse_mass)
        propose = adjusted_mclmc_proposal(
            lambda state, step_size, *_: one_step(state, step_size),  # No noise on the way.
            step_size,
            jnp.inf,
            number,
            MAX_ENERGY_ERROR,
            sample_proposal=_accept_or_reject,
        )
        key_momentum, key_accept = random.split(rng_key)
        moved, info, error = propose(key_accept, _with_direction(key_momentum, before))
        state = HMCState(moved.position, *moved[2:])
        drawn = draw_info(state, info, error, step_size)
        return state, drawn._replace(num_gradients=2 * number)

    return windowed(settings, start, transition)


def _descend(rng_key: Array, state, step_size: float, logdensity_fn: LogDensityFn):
    """Leads a chain to where the density is, by the dynamics without noise.

    Each step must raise the log density or keep the energy. The next one is half as long again
    where it does, and half as long where it does not.

    Args:
        rng_key: Key of the steps.
        state: BlackJAX's state.
        step_size: Size of the first step.
        logdensity_fn: Function from a position to nats.
    """
    kernel = mclmc.build_kernel()
    size = pytrees.size(state.position)

    def try_step(i, carry):
        state, step_size = carry
        key_step = random.fold_in(rng_key, i)
        new, info = kernel(key_step, state, logdensity_fn, jnp.ones(size), jnp.inf, step_size)
        keeps_energy = jnp.abs(info.energy_change) < _DESCENT_ERROR * size
        is_taken = info.nonans & ((new.logdensity > state.logdensity) | keeps_energy)
        state = pytrees.where(is_taken, new, state)
        return state, step_size * jnp.where(is_taken, 1.5, 0.5)

    begin = state, jnp.float32(step_size)
    return jax.lax.fori_loop(0, jnp.int32(_DESCENT_STEPS), try_step, begin)[0]


def _with_direction(rng_key: Array, state: HMCState) -> IntegratorState:
    """Returns a state that moves into a new direction."""
    return IntegratorState(state[0], generate_unit_vector(rng_key, state[0]), *state[1:])


def _accept_or_reject(
    rng_key: Array, log_acceptance: Array, old, new
) -> tuple[Any, tuple[Array, Array, Array]]:
    """Applies the rule of Metropolis and Hastings; BlackJAX's hides the energy error."""
    acceptance_rate = jnp.exp(jnp.minimum(log_acceptance, 0))
    is_accepted = random.bernoulli(rng_key, acceptance_rate)
    state = pytrees.where(is_accepted, new, old)
    return state, (is_accepted, acceptance_rate, -log_acceptance)
