"""Warm-up of HMC and NUTS, as Stan's: pure functions of one chain and the number of the draw.

The step size is found by dual averaging, the mass from the draws of windows that double in length
(Stan Reference Manual, "Automatic parameter tuning"). A mass of low rank is computed by the host
where a window ends.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, mass_matrix_adaptation
from blackjax.adaptation.staged_adaptation import build_schedule
from blackjax.adaptation.step_size import (
    DualAveragingAdaptationState,
    dual_averaging_adaptation,
)
from jax import lax

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
    """Warm-up of a chain, by its length: functions of the number of the draw.

    Attributes:
        init: `(position) -> Adaptation`.
        step_size: `(adaptation, t) -> step size` of draw t.
        update: `(adaptation, t, state, acceptance rate) -> adaptation` after draw t, by its
            position and gradient; after the warm-up nothing changes.
    """

    init: Callable
    step_size: Callable
    update: Callable


def windows(settings, is_by_leaf: bool = False) -> Windows:
    """Makes the warm-up of a chain.

    Args:
        settings: `ensemble.methods.kernels.Settings`. Its mass 'identity' adapts the step size
            only. The draws of a window are kept for 'low_rank', and where it ends the caller
            computes the mass: `window_ends`. Under 20 draws are too few for a mass.
        is_by_leaf: Whether a diagonal mass is a tree, for `leafwise_metric`.
    """
    num_warmup = settings.num_warmup
    stages = np.append(_stages(settings), 0)
    longest = max(window_ends(settings).values(), default=1)
    places = np.append(np.arange(num_warmup) % longest, longest)  # Later draws have no place.
    begin, average, averaged = dual_averaging_adaptation(settings.target_accept)
    start, add, finish = mass_matrix_adaptation(settings.mass != "dense")
    is_low_rank = settings.mass == LOW_RANK
    is_by_leaf &= settings.mass == "diagonal"
    if is_by_leaf:
        start, add, finish = leafwise_metric.start, leafwise_metric.add, leafwise_metric.finish

    def init(position):
        number = pytrees.size(position)
        if is_low_rank:
            mass = low_rank_mass.start(number, longest)
        else:
            mass = start(position if is_by_leaf else number)
        return _typed(Adaptation(begin(jnp.float32(settings.step_size)), mass))

    def step_size(adaptation, t):
        state = adaptation.step_size
        if not num_warmup:
            return jnp.float32(settings.step_size)
        return jnp.where(t < num_warmup, jnp.exp(state.log_step_size), averaged(state))

    def update(adaptation, t, state, acceptance_rate):
        def adapt(stage, old):
            if not stage:
                return old
            step_size = average(old.step_size, acceptance_rate)
            mass = old.mass
            if stage >= _IN_WINDOW and not is_low_rank:
                mass = _typed(add(mass, state.position))
            if stage == _ENDS_WINDOW:
                # The step size suits the old mass: it is sought anew, from where it was.
                step_size = begin(averaged(step_size))
                if not is_low_rank:
                    # Fused with the last draw of its window, a mass would round otherwise.
                    mass = finish(lax.optimization_barrier(mass))
            return _typed(Adaptation(step_size, mass))

        t = jnp.minimum(t, num_warmup)
        mass = adaptation.mass
        if is_low_rank:  # Outside of conditions, which would copy all draws of the window.
            mass = low_rank_mass.keep(mass, jnp.asarray(places)[t], state)
            adaptation = adaptation._replace(mass=())
        branches = [partial(adapt, stage) for stage in range(stages.max() + 1)]
        adaptation = lax.switch(jnp.asarray(stages)[t], branches, adaptation)
        return adaptation._replace(mass=mass) if is_low_rank else adaptation

    return Windows(init, step_size, update)


def window_ends(settings) -> dict[int, int]:
    """Returns the draws after which the caller computes a mass, and the lengths of their windows.

    Args:
        settings: As of `windows`; only the mass 'low_rank' has such draws.
    """
    if settings.mass != LOW_RANK:
        return {}
    stages = _stages(settings)
    ends = np.flatnonzero(stages == _ENDS_WINDOW) + 1
    lengths = np.diff(ends, prepend=np.argmax(stages == _IN_WINDOW))
    return dict(zip(ends.tolist(), lengths.tolist(), strict=True))


def _stages(settings) -> np.ndarray:
    """Returns the stages [T] of the draws of a warm-up."""
    if settings.mass == "identity":
        return np.ones(settings.num_warmup, int)
    with jax.ensure_compile_time_eval():  # The caller may be traced.
        return 1 + np.asarray(build_schedule(settings.num_warmup), int).sum(axis=1)


def _typed(tree):
    """Gives Python's numbers, with which BlackJAX starts, a type: each would be traced anew."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)
