"""Sets of variables that a run has left, and the function by which one of them predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.likelihoods.predictive import Arrays

OWN = "of_method"
"""The entry of a set that a method's function of it needs beside the network's variables."""
LINEAR = "linear"
"""The entry of a set that is added to the network's outputs: `kernel` [F, K] and `bias` [K] of a
linear function of the inputs that the network sees."""
WIDTH = "width"
"""The entry of a set by whose `factor` [] its predictions are wider than the outputs say."""


Predict = Callable[[Any, Any, Any, Array], Arrays]
"""`(task, a set, number of a pass, raw inputs [B, ...]) -> arrays [B, ...]` of one estimator.

The task is a `Supervised`. It is a function of a module, and pure: it can be pickled, compiled and
exported."""


def predict_plainly(task, one, number, inputs: Array) -> Arrays:
    """Predictions of a set of variables without noise: there is one pass."""
    return task.predict(one, inputs)


def apart(predicted: Arrays, num_each: int) -> Arrays:
    """Predictions [B, ...] of a member as [1, B, ...]; those of K estimators as [K, B, ...]."""
    if num_each == 1:
        return pytrees.at(predicted, None)
    return {name: jnp.moveaxis(leaf, 1, 0) for name, leaf in predicted.items()}


def all_estimators(predict: Predict, task, num_passes: int, sets, inputs: Array) -> Arrays:
    """Predictions by all passes of some sets, in one program.

    A loop: the program and its compilation hold one set's, whatever S, and on CPU it runs as fast
    as S programs. vmap would make grouped convolutions, which XLA:CPU has no fast kernel for.

    Args:
        predict: Function of one pass of one set.
        task: As of `Predict`; only with a single pass may it consist of several networks.
        num_passes: K.
        sets: Tree of arrays [S, ...].
        inputs: Raw inputs [B, ...].

    Returns:
        Arrays [S * K, B, ...].
    """

    def of_set(one):
        if num_passes > 1:
            return lax.map(lambda k: predict(task, one, k, inputs), jnp.arange(num_passes))
        return apart(predict(task, one, 0, inputs), task.num_estimators)

    if len(jax.tree.leaves(sets)[0]) == 1:  # No loop, in which XLA:CPU convolves slowly.
        return of_set(pytrees.at(sets, 0))
    return pytrees.merged(lax.map(of_set, sets))


@dataclass(frozen=True)
class Fitted:
    """S sets of variables, member by member, each of which predicts in K passes.

    A member that descends leaves one set, a chain one for each draw that predicts, the newest last.
    All S * K passes are estimators of their members. It holds host arrays and no training data, and
    can be pickled.

    Attributes:
        sets: Tree of arrays [S, ...]: a network's variables, and perhaps `OWN`.
        member_of: Member of each set, by its position among those that live, [S] int, ascending.
        predict: Predicts by one pass of one set.
        num_passes: K; above 1 only where passes differ.
        is_split: Whether the arrays of a member lie over several devices.
    """

    sets: Any
    member_of: NDArray[np.int64]
    predict: Predict = predict_plainly
    num_passes: int = 1
    is_split: bool = False

    @property
    def num_sets(self) -> int:
        """S."""
        return len(self.member_of)

    @property
    def num_estimators(self) -> int:
        """E = S * K."""
        return self.num_sets * self.num_passes

    @property
    def estimators_of(self) -> NDArray[np.int64]:
        """The member of each estimator, [E]."""
        return np.repeat(self.member_of, self.num_passes)

    @property
    def num_members(self) -> int:
        """M."""
        return int(self.member_of[-1]) + 1

    def of_members(self, chosen: Sequence[int]) -> Fitted:
        """The sets of some members, by their positions in ascending order."""
        kept = np.isin(self.member_of, chosen)
        member_of = np.searchsorted(chosen, self.member_of[kept])
        return replace(self, sets=pytrees.at(self.sets, kept), member_of=member_of)

    def all_estimators(self, task, inputs: Array) -> Arrays:
        """Predictions of raw inputs [B, ...], arrays [E, B, ...], in a program with the sets."""
        return all_estimators(self.predict, task, self.num_passes, self.sets, inputs)
