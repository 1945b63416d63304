"""MCLMC (Robnik and Seljak 2023, "Fluctuation without dissipation"), by McLachlan's steps.

It accepts every step, at the price of a bias that falls with its step size. The dynamics and the
tuning (Robnik et al. 2023, "Microcanonical Hamiltonian Monte Carlo") are BlackJAX's. BlackJAX's
kernel joins and splits the tree of parameters several times a step, and always draws the two
momenta that a refused step would need. For small networks this takes as long as a gradient. Here
the parameters are joined once for many steps. The numbers are those of BlackJAX's kernel, except
after a step into NaN.
"""

from collections.abc import Callable
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

MAX_TUNINGS = 3
"""The most tunings; another one follows if the one before has found no step size."""
DESCENT_STEPS = 200
MAX_WATCHED = 256
"""Coordinates whose autocorrelation gives L: all of a network's would fill memory."""
_MOMENTUM = 2**32 - 1  # Number that no draw has: a stream of a chain's key.
_DESCENT_ERROR = 0.1  # Nats of a parameter.


def make(settings: Settings, logdensity_fn: LogDensityFn, *_: Any) -> Sampler:
    """Makes the sampler; the arguments are those of `make_sampler`."""

    def init(rng_key: jax.Array, position: Any) -> Chain:
        key_momentum = jax.random.fold_in(rng_key, _MOMENTUM)
        state = mclmc.init(position, logdensity_fn, key_momentum)
        return Chain(rng_key, state, untuned(position, settings.step_size))

    def tune_chain(chain: Chain) -> Chain:
        joined, of_vector, separate = join(chain.state, logdensity_fn)
        key_tuning = jax.random.fold_in(chain.rng_key, TUNING)
        joined, found = tune(settings, key_tuning, joined, chain.adaptation, of_vector)
        return Chain(chain.rng_key, separate(joined), found)

    def draw(chain: Chain, t: jax.Array) -> tuple[Chain, DrawInfo]:
        rng_key = jax.random.fold_in(chain.rng_key, t)
        joined, of_vector, separate = join(chain.state, logdensity_fn)
        length, step_size, inverse_mass = found = chain.adaptation

        def body(joined: IntegratorState, i: jax.Array) -> tuple[IntegratorState, Any]:
            key_step = jax.random.fold_in(rng_key, i)
            return step(key_step, joined, of_vector, inverse_mass, length, step_size)

        joined, info = jax.lax.scan(body, joined, jnp.arange(settings.num_leapfrog_steps))
        errors = info.energy_change
        drawn = DrawInfo(
            log_density=joined.logdensity,
            acceptance_rate=jnp.mean(info.nonans) * is_usable(found),
            is_divergent=jnp.any(~info.nonans | (jnp.abs(errors) > MAX_ENERGY_ERROR)),
            energy_error=jnp.where(info.nonans.all(), jnp.sqrt(jnp.mean(errors**2)), jnp.inf),
            step_size=step_size,
            num_gradients=jnp.int32(2 * settings.num_leapfrog_steps),
        )
        return chain._replace(state=separate(joined)), drawn

    return Sampler(init, draw, tune_chain if settings.num_warmup else None)


def join(
    state: IntegratorState, logdensity_fn: LogDensityFn
) -> tuple[IntegratorState, LogDensityFn, Callable[[IntegratorState], IntegratorState]]:
    """Returns a state of vectors [P] in place of trees, its log density, and the inverse."""
    position, split = ravel_pytree(state.position)
    momentum, grads = (ravel_pytree(tree)[0] for tree in (state.momentum, state.logdensity_grad))

    def separate(joined: IntegratorState) -> IntegratorState:
        position, momentum, log_density, grads = joined
        return IntegratorState(split(position), split(momentum), log_density, split(grads))

    joined = IntegratorState(position, momentum, state.logdensity, grads)
    return joined, lambda vector: logdensity_fn(split(vector)), separate


def step(
    rng_key: jax.Array,
    state: IntegratorState,
    logdensity_fn: LogDensityFn,
    inverse_mass_matrix: jax.Array,
    L: jax.Array,
    step_size: jax.Array,
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
    key_noise, _, _ = jax.random.split(unrolled(rng_key), 3)  # As BlackJAX splits it.
    move = with_isokinetic_maruyama(isokinetic_mclachlan(logdensity_fn, inverse_mass_matrix))
    moved, kinetic_change = move(state, step_size, L, key_noise)
    energy_change = kinetic_change - moved.logdensity + state.logdensity
    scalars = jnp.stack((moved.logdensity, kinetic_change, energy_change))
    is_finite = jnp.all(jnp.isfinite(scalars))
    for vector in (moved.position, moved.momentum):
        is_finite &= jnp.all(jnp.isfinite(vector))
    # By numbers that the refused step was to end with, so that no others are drawn.
    _, key_refreshed = jax.random.split(key_noise)
    refused = state._replace(momentum=generate_unit_vector(key_refreshed, state.position))
    return pytrees.where(
        is_finite,
        (moved, MCLMCInfo(moved.logdensity, kinetic_change, energy_change, True)),
        (refused, MCLMCInfo(state.logdensity, 0.0, 0.0, False)),
    )


class _Watched(NamedTuple):
    """A state that shows a few coordinates for all."""

    state: Any
    position: jax.Array


def untuned(position: Any, step_size: float) -> MCLMCAdaptationState:
    """Returns what the tuning starts with, by BlackJAX: L of a standard normal density."""
    num_params = pytrees.size(position)
    return MCLMCAdaptationState(
        jnp.sqrt(jnp.float32(num_params)), jnp.float32(step_size), jnp.ones(num_params)
    )


def tune(
    settings: Settings,
    rng_key: jax.Array,
    state: IntegratorState,
    start: MCLMCAdaptationState,
    logdensity_fn: LogDensityFn,
) -> tuple[IntegratorState, MCLMCAdaptationState]:
    """Finds the step size, then the diagonal mass if wanted, then L by the autocorrelation.

    Far from a narrow density, energy errors overflow and the step size that is found is 0. Such a
    chain is first led to where the density is, and then tuned once more.

    Args:
        settings: Settings of the sampler. A tuning takes at most `num_warmup` steps, two gradients
            each.
        rng_key: Key of the tuning.
        state: State of the chain, joined.
        start: Result of `untuned`.
        logdensity_fn: Function from a vector to nats.
    """
    num_steps = settings.num_warmup
    is_diagonal = settings.mass == "diagonal"
    # A third each; with a mass, whose step size is sought again, .3 each and .1 for that.
    share = 3 * num_steps // 10 if is_diagonal else num_steps // 3
    order = np.random.default_rng(0).permutation(state.position.size)
    watched = np.sort(order[:MAX_WATCHED])

    def show(state: IntegratorState) -> _Watched:
        return _Watched(state, state.position[watched])

    def watched_step(rng_key: jax.Array, state: _Watched, **options: Any) -> Any:
        inner, info = step(rng_key, state.state, **options)
        return show(inner), info

    def tuned(rng_key: jax.Array, state: IntegratorState) -> Any:
        key_step_size, key_length = jax.random.split(rng_key)
        # BlackJAX takes variances as E[x^2] - E[x]^2: far from zero float32 leaves nothing of it.
        origin = state.position
        state, found, _ = mclmc_find_L_and_step_size(
            step,
            num_steps,
            state._replace(position=jnp.zeros_like(origin)),
            key_step_size,
            lambda offset: logdensity_fn(origin + offset),
            frac_tune1=share / num_steps,
            frac_tune2=share / num_steps,
            frac_tune3=0,
            diagonal_preconditioning=is_diagonal,
            params=start,
        )
        state = state._replace(position=origin + state.position)
        if share >= 2:  # Else they are too few for an autocorrelation.
            seek_length = make_adaptation_L(watched_step, logdensity_fn, share / num_steps, 0.4)
            shown, found = seek_length(show(state), found, num_steps, key_length)
            state = shown.state
        return state, MCLMCAdaptationState(*map(jnp.float32, found))

    def is_unfinished(carry: Any) -> jax.Array:
        number, _, found = carry
        return (number == 0) | ((number < MAX_TUNINGS) & ~is_usable(found))

    def tune_again(carry: Any) -> Any:
        number, before, _ = carry
        key = jnp.where(number == 0, rng_key, jax.random.fold_in(rng_key, number))
        num_descents = jnp.where(number == 0, 0, DESCENT_STEPS)
        after = descend(key, before, start, step, logdensity_fn, num_descents)
        return number + 1, *tuned(key, after)

    return jax.lax.while_loop(is_unfinished, tune_again, (jnp.int32(0), state, start))[1:]


def is_usable(found: MCLMCAdaptationState) -> jax.Array:
    """Returns whether a chain can move with the result of its tuning."""
    return jnp.isfinite(found.step_size * found.L) & (found.step_size > 0) & (found.L > 0)


def descend(
    rng_key: jax.Array,
    state: Any,
    start: MCLMCAdaptationState,
    kernel: Callable[..., Any],
    logdensity_fn: LogDensityFn,
    num_steps: Any,
) -> Any:
    """Leads a chain to where the density is, by the dynamics without noise.

    Each step must raise the log density or keep the energy. The next one is half as long again
    where it does, and half as long where it does not.

    Args:
        rng_key: Key of the steps.
        state: BlackJAX's state.
        start: Result of `untuned`.
        kernel: `step`, or that of `blackjax.mcmc.mclmc.build_kernel`.
        logdensity_fn: Function from a position to nats.
        num_steps: Number of steps that are tried.
    """
    mass = start.inverse_mass_matrix

    def try_step(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        state, step_size = carry
        key_step = jax.random.fold_in(rng_key, i)
        new, info = kernel(key_step, state, logdensity_fn, mass, jnp.inf, step_size)
        keeps_energy = jnp.abs(info.energy_change) < _DESCENT_ERROR * mass.size
        is_taken = info.nonans & ((new.logdensity > state.logdensity) | keeps_energy)
        state = pytrees.where(is_taken, new, state)
        return state, step_size * jnp.where(is_taken, 1.5, 0.5)

    return jax.lax.fori_loop(0, num_steps, try_step, (state, start.step_size))[0]
