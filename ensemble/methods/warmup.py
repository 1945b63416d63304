"""Warm-up of HMC and NUTS, as Stan's: pure functions of one chain and the number of the draw.

The step size is found by dual averaging, the mass from the draws of windows that double in length
(Stan Reference Manual, "Automatic parameter tuning"). A mass of low rank is computed by the host
where a window ends.
"""

import functools
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


class Windows:
    """Warm-up of a chain, by its length: a function of the number of the draw alone.

    Args:
        settings: `ensemble.methods.kernels.Settings`. Its mass 'identity' adapts the step size
            only. The draws of a window are kept for 'low_rank', and where it ends the caller
            computes the mass: `window_ends`. Under 20 draws are too few for a mass.
        is_by_leaf: Whether a diagonal mass is a tree, for `leafwise_metric`.
    """

    def __init__(self, settings: Any, is_by_leaf: bool = False):
        mass = settings.mass
        self._settings = settings
        self._stages = np.append(_stages(mass, settings.num_warmup), 0)
        ends = window_ends(mass, settings.num_warmup)
        longest = max(ends.values(), default=0)
        self._places = np.full(settings.num_warmup + 1, longest)  # Others have no place.
        for end, length in ends.items():
            self._places[end - length : end] = np.arange(length)
        self._averaging = dual_averaging_adaptation(settings.target_accept)
        start, self._add, self._finish = mass_matrix_adaptation(mass != "dense")
        self._start = lambda position: start(pytrees.size(position))
        if mass == LOW_RANK:
            self._start = lambda position: low_rank_mass.start(pytrees.size(position), longest)
            self._add = self._finish = lambda mass, *_: mass
        elif mass == "diagonal" and is_by_leaf:
            leafwise = leafwise_metric
            self._start, self._add, self._finish = leafwise.start, leafwise.add, leafwise.finish

    def init(self, position: Any) -> Adaptation:
        """Starts at a position."""
        step_size = self._averaging[0](jnp.float32(self._settings.step_size))
        return _typed(Adaptation(step_size, self._start(position)))

    def step_size(self, adaptation: Adaptation, t: jax.Array) -> jax.Array:
        """Returns the step size of draw t."""
        state = adaptation.step_size
        if not self._settings.num_warmup:
            return jnp.float32(self._settings.step_size)
        is_adapting = t < self._settings.num_warmup
        return jnp.where(is_adapting, jnp.exp(state.log_step_size), self._averaging[2](state))

    def update(
        self, adaptation: Adaptation, t: jax.Array, position: Any, grad: Any, acceptance_rate: Any
    ) -> Adaptation:
        """Adapts after draw t; after the warm-up nothing changes.

        Args:
            adaptation: State before.
            t: Number of the draw.
            position: The draw.
            grad: Gradient of the log density there.
            acceptance_rate: Acceptance rate of the draw.
        """
        num_warmup = self._settings.num_warmup
        if not num_warmup:
            return adaptation
        start_averaging, average, averaged = self._averaging

        def adapt(stage: int, old: Adaptation) -> Adaptation:
            if not stage:
                return old
            step_size = _typed(average(old.step_size, acceptance_rate))
            mass = old.mass
            if stage >= _IN_WINDOW:
                mass = _typed(self._add(mass, position))
            if stage == _ENDS_WINDOW:
                # The step size suits the old mass: it is sought anew, from where it was.
                step_size = start_averaging(averaged(step_size))
                # Fused with the last draw of its window, a mass would round otherwise.
                mass = self._finish(jax.lax.optimization_barrier(mass))
            return _typed(Adaptation(step_size, mass))

        t = jnp.minimum(t, num_warmup)
        is_low_rank = self._settings.mass == LOW_RANK
        kept: Any = adaptation.mass
        if is_low_rank:  # Outside of conditions, which would copy all draws of the window.
            kept = low_rank_mass.keep(kept, jnp.asarray(self._places)[t], position, grad)
            adaptation = adaptation._replace(mass=())
        branches = [functools.partial(adapt, stage) for stage in range(self._stages.max() + 1)]
        adaptation = jax.lax.switch(jnp.asarray(self._stages)[t], branches, adaptation)
        return adaptation._replace(mass=kept) if is_low_rank else adaptation


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


def _typed(tree: Any) -> Any:
    """Gives Python's numbers, with which BlackJAX starts, a type: each would be traced anew."""

    def convert(leaf: Any) -> jax.Array:
        is_integer = jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
        return jnp.asarray(leaf, jnp.int32 if is_integer else jnp.float32)

    return jax.tree.map(convert, tree)
