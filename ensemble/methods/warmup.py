"""How samplers find their step size and their mass: pure functions of one chain.

HMC and NUTS adapt as Stan does, draw by draw: the step size by dual averaging, the mass from the
draws of windows that double in length (Stan Reference Manual, "Automatic parameter tuning"). A mass
of low rank is computed by the host where a window ends.
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

from ensemble import pytrees
from ensemble.methods import leafwise_metric, low_rank_mass
from ensemble.methods.low_rank_mass import LowRankMass

LOW_RANK = "low_rank"
MAX_TUNINGS = 3
"""The most tunings of MCLMC; another one follows where the one before has found no step size."""
DESCENT_STEPS = 200
_DESCENT_ERROR = 0.1  # Nats of a parameter.
MAX_WATCHED = 256
"""Coordinates whose autocorrelation gives the L of MCLMC: all of a network's would fill memory."""


class Adaptation(NamedTuple):
    """What the warm-up of HMC and NUTS carries from draw to draw.

    Attributes:
        step_size: of dual averaging.
        mass: the inverse mass matrix in use, [P] or [P, P], and the moments of the window so far;
            or trees of these, leaf by leaf; or a mass of low rank.
    """

    step_size: DualAveragingAdaptationState
    mass: MassMatrixAdaptationState | LowRankMass


class Windows(NamedTuple):
    """Stan's warm-up.

    Attributes:
        init: `(position) -> Adaptation`.
        step_size: `(Adaptation, t) -> []`, that draw t is to be made with.
        update: `(Adaptation, t, position, grad, acceptance_rate) -> Adaptation`, after draw t, with
            the gradient of the log density there; the same as before where t is none of the
            warm-up's.
    """

    init: Callable[[Any], Adaptation]
    step_size: Callable[[Adaptation, jax.Array], jax.Array]
    update: Callable[[Adaptation, jax.Array, Any, Any, jax.Array], Adaptation]


def make_windows(settings: Any, is_by_leaf: bool = False) -> Windows:
    """Makes the warm-up of a chain from its length, so that it is a function of t alone.

    Args:
        settings: of `ensemble.methods.kernels.Settings`. Its mass 'identity' adapts the step size
            only. The draws of a window are kept for 'low_rank', and where it ends the caller
            computes the mass: `window_ends`. Under 20 draws are too few for a mass.
        is_by_leaf: whether a diagonal mass is a tree, for `leafwise_metric`.
    """
    mass, step_size, num_warmup = settings.mass, settings.step_size, settings.num_warmup
    start_averaging, average, averaged = dual_averaging_adaptation(settings.target_accept)
    is_slow, ends_window = _schedule(mass, num_warmup)
    places = _places(is_slow, ends_window)
    start_mass, add_moments, finish_moments = _estimator(mass, is_by_leaf, places)

    def init(position: Any) -> Adaptation:
        start = Adaptation(start_averaging(jnp.float32(step_size)), start_mass(position))
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

    def update(
        adaptation: Adaptation, t: jax.Array, position: Any, grad: Any, acceptance: Any
    ) -> Adaptation:
        if not num_warmup:
            return adaptation
        kept = adaptation.mass
        if mass == LOW_RANK:  # Outside of conditions, which would copy all draws of the window.
            place = jnp.asarray(places)[jnp.minimum(t, num_warmup)]
            kept = low_rank_mass.keep(kept, place, position, grad)
            adaptation = adaptation._replace(mass=())
        adaptation = jax.lax.cond(
            t < num_warmup,
            lambda old: during(old, jnp.minimum(t, num_warmup - 1), position, acceptance),
            lambda old: old,
            adaptation,
        )
        return adaptation._replace(mass=kept) if mass == LOW_RANK else adaptation

    return Windows(init, current_step_size, update)


def window_ends(mass: str, num_warmup: int) -> dict[int, int]:
    """The draws after which the caller computes a mass, and how many their windows have.

    Args:
        mass: of `Settings`; only 'low_rank' has such draws.
        num_warmup: draws.
    """
    if mass != LOW_RANK:
        return {}
    is_slow, ends_window = _schedule(mass, num_warmup)
    ends = np.flatnonzero(ends_window)
    places = _places(is_slow, ends_window)
    return {int(t) + 1: int(places[t]) + 1 for t in ends}


def _schedule(mass: str, num_warmup: int) -> tuple[np.ndarray, np.ndarray]:
    """Says for each draw of the warm-up whether it belongs to a window, and whether it ends one."""
    if mass == "identity":
        return np.zeros(num_warmup, bool), np.zeros(num_warmup, bool)
    with jax.ensure_compile_time_eval():  # The caller may be traced.
        is_slow, ends_window = np.asarray(build_schedule(num_warmup), bool).T
    return is_slow, ends_window


def _places(is_slow: np.ndarray, ends_window: np.ndarray) -> np.ndarray:
    """Numbers [T + 1] of draws in their windows; of others, and at the end, the longest window."""
    counts = np.cumsum(is_slow)
    ends = counts[ends_window]
    longest = np.diff(ends, prepend=0).max(initial=0)
    begun = np.append(0, ends)[np.searchsorted(ends, counts)]
    return np.append(np.where(is_slow, counts - begun - 1, longest), longest)


def _estimator(
    mass: str, is_by_leaf: bool, places: np.ndarray
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Functions that start a mass at a position, take a draw, and finish a window."""
    if mass == LOW_RANK:
        same = lambda mass, *_: mass  # noqa: E731
        return lambda one: low_rank_mass.start(pytrees.size(one), places[-1]), same, same
    if mass == "diagonal" and is_by_leaf:
        return leafwise_metric.start, leafwise_metric.add, leafwise_metric.finish
    start, add, finish = mass_matrix_adaptation(mass != "dense")
    return lambda position: start(pytrees.size(position)), add, finish


def _typed(tree: Any) -> Any:
    """Gives Python's numbers, with which BlackJAX starts, a type: each would be traced anew."""

    def convert(leaf: Any) -> jax.Array:
        is_integer = jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
        return jnp.asarray(leaf, jnp.int32 if is_integer else jnp.float32)

    return jax.tree.map(convert, tree)


def untuned(position: Any, step_size: float) -> MCLMCAdaptationState:
    """The state where the tuning of MCLMC starts, BlackJAX's choice: L of a standard normal
    density.

    Args:
        position: of a chain.
        step_size: of the first step.
    """
    num_params = pytrees.size(position)
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
    num_params = pytrees.size(state.position)

    def is_unfinished(carry: Any) -> jax.Array:
        number, _, found = carry
        return (number == 0) | ((number < MAX_TUNINGS) & ~is_usable(found))

    def tune_again(carry: Any) -> Any:
        number, before, _ = carry
        key = jax.lax.cond(
            number == 0, lambda: rng_key, lambda: jax.random.fold_in(rng_key, number)
        )
        num_descents = jnp.where(number == 0, 0, DESCENT_STEPS)
        after = descend(key, before, start, kernel, logdensity_fn, num_descents)
        return number + 1, *tuned(key, after)

    # A third each; with a mass, whose step size is sought again, .3 each and .1 for that.
    share = 3 * num_steps // 10 if is_diagonal else num_steps // 3

    def tuned(rng_key: jax.Array, state: Any) -> tuple[Any, MCLMCAdaptationState]:
        key_step_size, key_length = jax.random.split(rng_key)
        # BlackJAX takes variances as E[x^2] - E[x]^2: far from zero float32 leaves nothing of it.
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
        watched = np.sort(np.random.default_rng(0).permutation(num_params)[:MAX_WATCHED])

        def show(state: Any) -> _Watched:
            return _Watched(state, ravel_pytree(state.position)[0][watched])

        def watched_kernel(rng_key: jax.Array, state: _Watched, **settings: Any) -> Any:
            inner, info = kernel(rng_key, state.state, **settings)
            return show(inner), info

        seek_length = make_adaptation_L(
            watched_kernel, logdensity_fn, share / num_steps, l_factor=0.4
        )
        shown, found = seek_length(show(state), found, num_steps, key_length)
        return shown.state, _typed(found)

    _, state, found = jax.lax.while_loop(
        is_unfinished, tune_again, (jnp.int32(0), state, _typed(start))
    )
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
        state = pytrees.where(is_taken, new, state)
        return state, step_size * jnp.where(is_taken, 1.5, 0.5)

    return jax.lax.fori_loop(0, num_steps, step, (state, start.step_size))[0]
