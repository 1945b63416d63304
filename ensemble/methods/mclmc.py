"""MCLMC (Robnik and Seljak 2023, "Fluctuation without dissipation"), by McLachlan's steps.

It accepts every step, at the price of a bias that falls with its step size. The dynamics and the
tuning (Robnik et al. 2023, "Microcanonical Hamiltonian Monte Carlo") are BlackJAX's. BlackJAX's
kernel joins and splits the tree of parameters several times a step, and always draws the two
momenta that a refused step would need. For small networks this takes as long as a gradient. Here
the parameters are joined once for many steps. The numbers are those of BlackJAX's kernel, except
after a step into NaN.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mclmc_adaptation import (
    MCLMCAdaptationState,
    make_adaptation_L,
    mclmc_find_L_and_step_size,
)
from blackjax.mcmc import mclmc
from blackjax.mcmc.integrators import (
    IntegratorState,
    isokinetic_mclachlan,
    with_isokinetic_maruyama,
)
from blackjax.mcmc.mclmc import MCLMCInfo
from blackjax.util import generate_unit_vector
from jax import Array, random
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.methods.kernels import (
    MAX_ENERGY_ERROR,
    TUNING,
    Chain,
    DrawInfo,
    LogDensityFn,
    Sampler,
    Settings,
)
from ensemble.methods.threefry import unrolled

MAX_WATCHED = 256
"""Coordinates whose autocorrelation gives L: all of a network's would fill memory."""
_MOMENTUM = 2**32 - 1  # Number that no draw has: a stream of a chain's key.


class _Watched(NamedTuple):
    """A state that shows a few coordinates for all."""

    state: Any
    position: Array


def make(settings: Settings, logdensity_fn: LogDensityFn, *_) -> Sampler:
    """Makes the sampler; the arguments are those of `make_sampler`."""
    num_steps = settings.num_warmup

    def init(rng_key, position):
        key_momentum = random.fold_in(rng_key, _MOMENTUM)
        state = mclmc.init(position, logdensity_fn, key_momentum)
        number = pytrees.size(position)
        length = jnp.sqrt(jnp.float32(number))  # Of a standard normal density.
        step_size = jnp.float32(settings.step_size)
        return Chain(state, MCLMCAdaptationState(length, step_size, jnp.ones(number)))

    def tune(rng_key, chain):
        """Finds the step size, the diagonal mass if wanted, then L by the autocorrelation.

        It takes at most `num_warmup` steps, two gradients each. Far from a narrow density, energy
        errors overflow, and the step size that is found is 0.
        """
        state, of_vector, separate = join(chain.state, logdensity_fn)
        key_step_size, key_length = random.split(random.fold_in(rng_key, TUNING))
        is_diagonal = settings.mass == "diagonal"
        # A third each; with a mass, whose step size is sought again, .3 each and .1 for that.
        share = 3 * num_steps // 10 if is_diagonal else num_steps // 3
        # BlackJAX takes variances as E[x^2] - E[x]^2: far from zero float32 leaves nothing of it.
        origin = state.position
        state, found, _ = mclmc_find_L_and_step_size(
            step,
            num_steps,
            state._replace(position=jnp.zeros_like(origin)),
            key_step_size,
            lambda offset: of_vector(origin + offset),
            frac_tune1=share / num_steps,
            frac_tune2=share / num_steps,
            frac_tune3=0,
            diagonal_preconditioning=is_diagonal,
            params=chain.adaptation,
        )
        state = state._replace(position=origin + state.position)
        order = np.random.default_rng(0).permutation(origin.size)
        watched = np.sort(order[:MAX_WATCHED])

        def watched_step(rng_key, state, **options):
            moved, info = step(rng_key, state.state, **options)
            return _Watched(moved, moved.position[watched]), info

        if share >= 2:  # Else they are too few for an autocorrelation.
            seek_length = make_adaptation_L(watched_step, of_vector, share / num_steps, 0.4)
            shown = _Watched(state, state.position[watched])
            (state, _), found = seek_length(shown, found, num_steps, key_length)
        return Chain(separate(state), MCLMCAdaptationState(*map(jnp.float32, found)))

    def draw(rng_key, chain, t):
        rng_key = random.fold_in(rng_key, t)
        joined, of_vector, separate = join(chain.state, logdensity_fn)
        length, step_size, inverse_mass = chain.adaptation
        is_usable = jnp.isfinite(step_size * length) & (step_size > 0) & (length > 0)

        def body(joined, i):
            key_step = random.fold_in(rng_key, i)
            return step(key_step, joined, of_vector, inverse_mass, length, step_size)

        joined, info = jax.lax.scan(body, joined, jnp.arange(settings.num_leapfrog_steps))
        errors = info.energy_change
        drawn = DrawInfo(
            log_density=joined.logdensity,
            acceptance_rate=jnp.mean(info.nonans) * is_usable,
            is_divergent=jnp.any(~info.nonans | (jnp.abs(errors) > MAX_ENERGY_ERROR)),
            energy_error=jnp.where(info.nonans.all(), jnp.sqrt(jnp.mean(errors**2)), jnp.inf),
            step_size=step_size,
            num_gradients=jnp.int32(2 * settings.num_leapfrog_steps),
        )
        return chain._replace(state=separate(joined)), drawn

    return Sampler(init, draw, tune if num_steps else None)


def join(
    state: IntegratorState, logdensity_fn: LogDensityFn
) -> tuple[IntegratorState, LogDensityFn, Callable]:
    """Returns a state of vectors [P] in place of trees, its log density, and the inverse."""
    split = ravel_pytree(state.position)[1]

    def each(function, state):
        position, momentum, log_density, grads = state
        return IntegratorState(function(position), function(momentum), log_density, function(grads))

    joined = each(lambda tree: ravel_pytree(tree)[0], state)
    return joined, lambda vector: logdensity_fn(split(vector)), partial(each, split)


def step(
    rng_key: Array,
    state: IntegratorState,
    logdensity_fn: LogDensityFn,
    inverse_mass_matrix: Array,
    L: Array,
    step_size: Array,
) -> tuple[IntegratorState, MCLMCInfo]:
    """Takes one step, with the arguments and results of `blackjax.mcmc.mclmc.build_kernel()`.

    A step into NaN is not taken: the momentum is drawn anew.

    Args:
        rng_key: Key of the step.
        state: State of the chain, joined.
        logdensity_fn: Function from a vector to nats.
        inverse_mass_matrix: Diagonal, [P].
        L: Length in which the momentum is forgotten.
        step_size: Step size of the integrator.
    """
    key_noise, _, _ = random.split(unrolled(rng_key), 3)  # As BlackJAX splits it.
    move = with_isokinetic_maruyama(isokinetic_mclachlan(logdensity_fn, inverse_mass_matrix))
    moved, kinetic_change = move(state, step_size, L, key_noise)
    energy_change = kinetic_change - moved.logdensity + state.logdensity
    scalars = jnp.stack((moved.logdensity, kinetic_change, energy_change))
    is_finite = jnp.all(jnp.isfinite(scalars))
    for vector in (moved.position, moved.momentum):
        is_finite &= jnp.all(jnp.isfinite(vector))
    # By numbers that the refused step was to end with, so that no others are drawn.
    _, key_refreshed = random.split(key_noise)
    refused = state._replace(momentum=generate_unit_vector(key_refreshed, state.position))
    return pytrees.where(
        is_finite,
        (moved, MCLMCInfo(moved.logdensity, kinetic_change, energy_change, True)),
        (refused, MCLMCInfo(state.logdensity, 0.0, 0.0, False)),
    )
