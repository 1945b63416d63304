"""How samplers find their step size and their mass: pure functions of one chain.

HMC and NUTS adapt as Stan does, draw by draw: the step size by dual averaging, the mass from the
draws of windows that double in length (Stan Reference Manual, "Automatic parameter tuning").
MCLMC is tuned in one go (Robnik et al. 2023, "Microcanonical Hamiltonian Monte Carlo").
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, mass_matrix_adaptation
from blackjax.adaptation.mclmc_adaptation import (
    MCLMCAdaptationState,
    make_adaptation_L,
    mclmc_find_L_and_step_size,
)
from blackjax.adaptation.staged_adaptation import build_schedule
from blackjax.adaptation.step_size import (
    DualAveragingAdaptationState,
    dual_averaging_adaptation,
)
from jax.flatten_util import ravel_pytree

MASSES = ("identity", "diagonal", "dense")
MAX_TUNINGS = 3
"""Of MCLMC; another one follows where the one before has found no step size."""
DESCENT_STEPS = 200
_DESCENT_ERROR = 0.1  # Nats of a parameter.
MAX_WATCHED = 256
"""Coordinates whose autocorrelation gives the L of MCLMC: all of a network's would fill memory."""


class Adaptation(NamedTuple):
    """What the warm-up of HMC and NUTS carries from draw to draw.

    Attributes:
        step_size: of dual averaging.
        mass: the inverse mass matrix in use, [P] or [P, P], and the moments of the window so far.
    """

    step_size: DualAveragingAdaptationState
    mass: MassMatrixAdaptationState


class Windows(NamedTuple):
    """Stan's warm-up.

    Attributes:
        init: `(position) -> Adaptation`.
        step_size: `(Adaptation, t) -> []`, that draw t is to be made with.
        update: `(Adaptation, t, position, acceptance_rate) -> Adaptation`, after draw t; the same
            as before where t is none of the warm-up's.
    """

    init: Callable[[Any], Adaptation]
    step_size: Callable[[Adaptation, jax.Array], jax.Array]
    update: Callable[[Adaptation, jax.Array, Any, jax.Array], Adaptation]


def make_windows(mass: str, step_size: float, num_warmup: int, target_acceptance: float) -> Windows:
    """Makes the warm-up of a chain from its length, so that it is a function of t alone.

    Args:
        mass: of `MASSES`; 'identity' adapts the step size only.
        step_size: at the start.
        num_warmup: draws; under 20 are too few for a mass.
        target_acceptance: that dual averaging aims at.
    """
    start_averaging, average, averaged = dual_averaging_adaptation(target_acceptance)
    start_moments, add_moments, finish_moments = mass_matrix_adaptation(mass != "dense")
    if mass == "identity":
        is_slow = ends_window = np.zeros(num_warmup, bool)
    else:
        with jax.ensure_compile_time_eval():  # The caller may be traced.
            is_slow, ends_window = np.asarray(build_schedule(num_warmup), bool).T

    def init(position: Any) -> Adaptation:
        num_params = sum(leaf.size for leaf in jax.tree.leaves(position))
        start = Adaptation(start_averaging(jnp.float32(step_size)), start_moments(num_params))
        return _typed(start)

    def current_step_size(adaptation: Adaptation, t: jax.Array) -> jax.Array:
        if not num_warmup:
            return jnp.float32(step_size)
        return jnp.where(
            t < num_warmup,
            jnp.exp(adaptation.step_size.log_step_size),
            averaged(adaptation.step_size),
        )

    def during(adaptation: Adaptation, t: jax.Array, position: Any, acceptance: Any) -> Adaptation:
        adaptation = adaptation._replace(step_size=average(adaptation.step_size, acceptance))
        if not is_slow.any():
            return _typed(adaptation)
        moments = jax.lax.cond(
            jnp.asarray(is_slow)[t],
            lambda old: _typed(add_moments(old, position)),
            lambda old: old,
            adaptation.mass,
        )
        # The step size suits the old mass: it is sought anew, from where it was.
        return jax.lax.cond(
            jnp.asarray(ends_window)[t],
            lambda old: _typed(
                Adaptation(start_averaging(averaged(old.step_size)), finish_moments(old.mass))
            ),
            _typed,
            Adaptation(adaptation.step_size, moments),
        )

    def update(adaptation: Adaptation, t: jax.Array, position: Any, acceptance: Any) -> Adaptation:
        if not num_warmup:
            return adaptation
        return jax.lax.cond(
            t < num_warmup,
            lambda old: during(old, jnp.minimum(t, num_warmup - 1), position, acceptance),
            lambda old: old,
            adaptation,
        )

    return Windows(init, current_step_size, update)


def _typed(tree: Any) -> Any:
    """Gives Python's numbers, with which BlackJAX starts, a type: each would be traced anew."""

    def convert(leaf: Any) -> jax.Array:
        is_integer = jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
        return jnp.asarray(leaf, jnp.int32 if is_integer else jnp.float32)

    return jax.tree.map(convert, tree)


def untuned(position: Any, step_size: float) -> MCLMCAdaptationState:
    """Where the tuning of MCLMC starts, BlackJAX's choice: L of a standard normal density.

    Args:
        position: of a chain.
        step_size: of the first step.
    """
    num_params = sum(leaf.size for leaf in jax.tree.leaves(position))
    return MCLMCAdaptationState(
        L=jnp.sqrt(jnp.float32(num_params)),
        step_size=jnp.float32(step_size),
        inverse_mass_matrix=jnp.ones(num_params),
    )


class _Watched(NamedTuple):
    """A state of MCLMC that shows a few coordinates for all."""

    state: Any
    position: jax.Array


def tune_mclmc(
    rng_key: jax.Array,
    state: Any,
    start: MCLMCAdaptationState,
    kernel: Callable[..., Any],
    logdensity_fn: Callable[[Any], jax.Array],
    num_steps: int,
    is_diagonal: bool,
) -> tuple[Any, MCLMCAdaptationState]:
    """Finds the step size, then the diagonal mass if wanted, then L by the autocorrelation.

    Far from a narrow density, energy errors overflow and the step size that is found is 0. Such a
    chain is first led to where the density is, and then tuned once more.

    Args:
        rng_key: of the tuning.
        state: BlackJAX's.
        start: where the search starts.
        kernel: of `blackjax.mcmc.mclmc.build_kernel`.
        logdensity_fn: from a position to nats.
        num_steps: of the integrator, two gradients each; at most so many are taken by a tuning.
        is_diagonal: whether a diagonal mass is wanted.

    Returns:
        The state after the tuning, and what was found.
    """
    number = jnp.int32(0)

    def is_unfinished(carry: tuple[jax.Array, Any, MCLMCAdaptationState]) -> jax.Array:
        number, _, found = carry
        return (number == 0) | ((number < MAX_TUNINGS) & ~is_usable(found))

    def tune_again(
        carry: tuple[jax.Array, Any, MCLMCAdaptationState],
    ) -> tuple[jax.Array, Any, MCLMCAdaptationState]:
        number, before, _ = carry
        key = jax.lax.cond(
            number == 0, lambda: rng_key, lambda: jax.random.fold_in(rng_key, number)
        )
        num_descents = jnp.where(number == 0, 0, DESCENT_STEPS)
        after = descend(key, before, start, kernel, logdensity_fn, num_descents)
        tuned = _tune_once(key, after, start, kernel, logdensity_fn, num_steps, is_diagonal)
        return number + 1, *tuned

    _, state, found = jax.lax.while_loop(is_unfinished, tune_again, (number, state, _typed(start)))
    return state, found


def is_usable(found: MCLMCAdaptationState) -> jax.Array:
    """Whether a chain can move with what its tuning has found."""
    return jnp.isfinite(found.step_size * found.L) & (found.step_size > 0) & (found.L > 0)


def descend(
    rng_key: jax.Array,
    state: Any,
    start: MCLMCAdaptationState,
    kernel: Callable[..., Any],
    logdensity_fn: Callable[[Any], jax.Array],
    num_steps: jax.Array,
) -> Any:
    """Leads a chain of MCLMC to where the density is, by the dynamics without its noise.

    Each step must raise the log density or keep the energy. The next one is half as long again
    where it does, and half as long where it does not.

    Args:
        rng_key: of the steps.
        state: BlackJAX's.
        start: has the first step size.
        kernel: of `blackjax.mcmc.mclmc.build_kernel`.
        logdensity_fn: from a position to nats.
        num_steps: how many are tried.
    """
    num_params = start.inverse_mass_matrix.size

    def step(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        state, step_size = carry
        key_step = jax.random.fold_in(rng_key, i)
        mass = start.inverse_mass_matrix
        new, info = kernel(key_step, state, logdensity_fn, mass, jnp.inf, step_size)
        is_good = (new.logdensity > state.logdensity) | (
            jnp.abs(info.energy_change) < _DESCENT_ERROR * num_params
        )
        is_taken = info.nonans & is_good
        state = jax.tree.map(lambda one, other: jnp.where(is_taken, one, other), new, state)
        return state, step_size * jnp.where(is_taken, 1.5, 0.5)

    return jax.lax.fori_loop(0, num_steps, step, (state, start.step_size))[0]


def _tune_once(
    rng_key: jax.Array,
    state: Any,
    start: MCLMCAdaptationState,
    kernel: Callable[..., Any],
    logdensity_fn: Callable[[Any], jax.Array],
    num_steps: int,
    is_diagonal: bool,
) -> tuple[Any, MCLMCAdaptationState]:
    """One tuning, with the arguments of `tune_mclmc`."""
    # A third each; with a mass, whose step size is sought again, .3 each and .1 for that.
    share = 3 * num_steps // 10 if is_diagonal else num_steps // 3
    key_step_size, key_length = jax.random.split(rng_key)
    # BlackJAX takes variances as E[x^2] - E[x]^2, of which float32 leaves nothing far from zero.
    origin = state.position

    def move(offset: Any) -> Any:
        return jax.tree.map(jnp.add, origin, offset)

    state, found, _ = mclmc_find_L_and_step_size(
        kernel,
        num_steps,
        state._replace(position=jax.tree.map(jnp.zeros_like, origin)),
        key_step_size,
        lambda offset: logdensity_fn(move(offset)),
        frac_tune1=share / num_steps,
        frac_tune2=share / num_steps,
        frac_tune3=0,
        diagonal_preconditioning=is_diagonal,
        params=start,
    )
    state = state._replace(position=move(state.position))
    if share < 2:  # Too few for an autocorrelation.
        return state, _typed(found)
    size = found.inverse_mass_matrix.size
    watched = np.sort(np.random.default_rng(0).permutation(size)[:MAX_WATCHED])

    def show(state: Any) -> _Watched:
        return _Watched(state, ravel_pytree(state.position)[0][watched])

    def watched_kernel(rng_key: jax.Array, state: _Watched, **settings: Any) -> Any:
        inner, info = kernel(rng_key, state.state, **settings)
        return show(inner), info

    seek_length = make_adaptation_L(watched_kernel, logdensity_fn, share / num_steps, l_factor=0.4)
    shown, found = seek_length(show(state), found, num_steps, key_length)
    return shown.state, _typed(found)
