"""Warm-up of HMC and NUTS, as Stan's: pure functions of one chain and the number of the draw.

The step size is found by dual averaging, the mass from the draws of windows that double in length
(Stan Reference Manual, "Automatic parameter tuning"). A mass of low rank is computed by the host
where a window ends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, mass_matrix_adaptation
from blackjax.adaptation.staged_adaptation import build_schedule
from blackjax.adaptation.step_size import (
    DualAveragingAdaptationState,
    dual_averaging_adaptation,
)

from ensemble import pytrees
from ensemble.methods import leafwise_metric, low_rank_mass
from ensemble.methods.low_rank_mass import LowRankMass

LOW_RANK = "low_rank"
_IN_WINDOW = 2
_ENDS_WINDOW = 3
"""Stages of draws; 1 adapts the step size alone, 0 nothing."""


class Adaptation(NamedTuple):
    """State of the warm-up.

    Attributes:
        step_size: State of dual averaging.
        mass: Inverse mass matrix in use, [P] or [P, P], and the moments of the window so far; or
            trees of these, leaf by leaf; or a mass of low rank.
    """

    step_size: DualAveragingAdaptationState
    mass: MassMatrixAdaptationState | LowRankMass


class Windows(NamedTuple):
    """Warm-up of a chain.

    Attributes:
        init: `(position) -> Adaptation`.
        step_size: `(Adaptation, t) -> []`, step size of draw t.
        update: `(Adaptation, t, position, grad, acceptance_rate) -> Adaptation`, after draw t, with
            the gradient of the log density there; the same as before after the warm-up.
    """

    init: Callable[[Any], Adaptation]
    step_size: Callable[[Adaptation, jax.Array], jax.Array]
    update: Callable[[Adaptation, jax.Array, Any, Any, jax.Array], Adaptation]


def make_windows(settings: Any, is_by_leaf: bool = False) -> Windows:
    """Makes the warm-up of a chain from its length, so that it is a function of t alone.

    Args:
        settings: `ensemble.methods.kernels.Settings`. Its mass 'identity' adapts the step size
            only. The draws of a window are kept for 'low_rank', and where it ends the caller
            computes the mass: `window_ends`. Under 20 draws are too few for a mass.
        is_by_leaf: Whether a diagonal mass is a tree, for `leafwise_metric`.
    """
    mass = settings.mass
    step_size = settings.step_size
    num_warmup = settings.num_warmup
    start_averaging, average, averaged = dual_averaging_adaptation(settings.target_accept)
    stages = np.append(_stages(mass, num_warmup), 0)
    ends = window_ends(mass, num_warmup)
    start_mass, add, finish = _estimator(mass, is_by_leaf, max(ends.values(), default=0))
    places = np.full(num_warmup + 1, max(ends.values(), default=0))  # Others have no place.
    for end, length in ends.items():
        places[end - length : end] = np.arange(length)

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

    def update(
        adaptation: Adaptation, t: jax.Array, position: Any, grad: Any, acceptance: Any
    ) -> Adaptation:
        if not num_warmup:
            return adaptation

        def adapt_step(old: Adaptation) -> Adaptation:
            return _typed(old._replace(step_size=average(old.step_size, acceptance)))

        def add_draw(old: Adaptation) -> Adaptation:
            new = adapt_step(old)
            return new._replace(mass=_typed(add(new.mass, position)))

        def end_window(old: Adaptation) -> Adaptation:
            new = add_draw(old)
            # The step size suits the old mass: it is sought anew, from where it was.
            step_size = start_averaging(averaged(new.step_size))
            # Fused with the last draw of its window, a mass would round otherwise.
            moments = jax.lax.optimization_barrier(new.mass)
            return _typed(Adaptation(step_size, finish(moments)))

        t = jnp.minimum(t, num_warmup)
        kept = adaptation.mass
        if mass == LOW_RANK:  # Outside of conditions, which would copy all draws of the window.
            kept = low_rank_mass.keep(kept, jnp.asarray(places)[t], position, grad)
            adaptation = adaptation._replace(mass=())
        branches = (lambda old: old, adapt_step, add_draw, end_window)[: stages.max() + 1]
        adaptation = jax.lax.switch(jnp.asarray(stages)[t], branches, adaptation)
        return adaptation._replace(mass=kept) if mass == LOW_RANK else adaptation

    return Windows(init, current_step_size, update)


def window_ends(mass: str, num_warmup: int) -> dict[int, int]:
    """Returns the draws after which the caller computes a mass, and the lengths of their windows.

    Args:
        mass: Mass of `Settings`; only 'low_rank' has such draws.
        num_warmup: Draws of the warm-up.
    """
    if mass != LOW_RANK:
        return {}
    stages = _stages(mass, num_warmup)
    ends = np.flatnonzero(stages == _ENDS_WINDOW) + 1
    lengths = np.diff(ends, prepend=np.argmax(stages == _IN_WINDOW))
    return dict(zip(ends.tolist(), lengths.tolist(), strict=True))


def _stages(mass: str, num_warmup: int) -> np.ndarray:
    """Stages [T] of the draws of a warm-up."""
    if mass == "identity":
        return np.ones(num_warmup, int)
    with jax.ensure_compile_time_eval():  # The caller may be traced.
        return 1 + np.asarray(build_schedule(num_warmup), int).sum(axis=1)


def _estimator(
    mass: str, is_by_leaf: bool, longest: int
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Functions that start a mass at a position, add a draw, and finish a window."""
    if mass == LOW_RANK:
        same = lambda mass, *_: mass  # noqa: E731
        return lambda position: low_rank_mass.start(pytrees.size(position), longest), same, same
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
