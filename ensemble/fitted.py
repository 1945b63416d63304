"""What predicts: the sets of variables that a run has left, and a function of one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.likelihoods.predictive import Arrays

OWN = "of_method"
"""The entry of a set that a method's function of it needs beside the network's variables."""
LINEAR = "linear"
"""The entry of a set that is added to the network's outputs: `kernel` [F, K] and `bias` [K] of a
linear function of the inputs that the network sees."""
WIDTH = "width"
"""The entry of a set by whose `factor` [] its predictions are wider than the outputs say."""


Predict = Callable[[Any, Any, Any, jax.Array], Arrays]
"""`(task, a set, number of a pass, raw inputs [B, ...]) -> arrays [B, ...]` of one estimator.

The task is a `Supervised`. It is a function of a module, and pure: it can be pickled, compiled and
exported."""


def predict_plainly(task: Any, one: Any, number: Any, inputs: jax.Array) -> Arrays:
    """What a set of variables says, without noise: there is one pass."""
    found: Arrays = task.predict(one, inputs)
    return found


def in_passes(predict: Predict, task: Any, num_passes: int) -> Callable[[Any, jax.Array], Arrays]:
    """What a set says in all its passes, of which one is in memory at a time.

    Args:
        predict: what it says in one.
        task: as of `Predict`.
        num_passes: K.

    Returns:
        `(set, inputs [B, ...]) -> arrays [B, K, ...]`, or [B, ...] where K is 1.
    """
    if num_passes == 1:
        return lambda one, inputs: predict(task, one, 0, inputs)

    def all_passes(one: Any, inputs: jax.Array) -> Arrays:
        numbers = jnp.arange(num_passes)
        predicted = jax.lax.map(lambda k: predict(task, one, k, inputs), numbers)
        return {name: jnp.moveaxis(leaf, 0, 1) for name, leaf in predicted.items()}

    return all_passes


@dataclasses.dataclass(frozen=True)
class Fitted:
    """S sets of variables, member by member, each of which predicts in K passes.

    A member that descends leaves one set, a chain one for each draw that predicts. All S * K passes
    are estimators of their members. It holds host arrays and no training data, and can be pickled.

    Attributes:
        sets: tree of arrays [S, ...]: a network's variables, and perhaps `OWN`.
        member_of: [S] int, ascending: the member of each, by its position among those that live.
        predict: what one pass of one set says.
        num_passes: K; above 1 only where passes differ.
        is_split: whether the arrays of a member lie over several devices.
        nouns: what a member and one of its estimators are called.
        in_order: whether a member's sets follow one another, the newest last; else all are equal.
    """

    sets: Any
    member_of: NDArray[np.int64]
    predict: Predict = predict_plainly
    num_passes: int = 1
    is_split: bool = False
    nouns: tuple[str, str] = ("member", "set")
    in_order: bool = True

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
        return int(self.member_of[-1]) + 1 if self.num_sets else 0

    @property
    def shape(self) -> tuple[int, int]:
        """(M, E / M), for members with as many estimators each."""
        return self.num_members, self.num_estimators // self.num_members

    @property
    def num_bytes(self) -> int:
        """The bytes of all sets."""
        return sum(int(leaf.nbytes) for leaf in jax.tree.leaves(self.sets))

    def of_members(self, chosen: Sequence[int]) -> Fitted:
        """The sets of some members, by their positions in ascending order."""
        kept = np.isin(self.member_of, chosen)
        return dataclasses.replace(
            self,
            sets=pytrees.at(self.sets, kept),
            member_of=np.searchsorted(chosen, self.member_of[kept]),
        )

    def all_estimators(self, task: Any, inputs: jax.Array) -> Arrays:
        """What all say of raw inputs [B, ...], arrays [E, B, ...], in a program with the sets."""
        # A loop: the program and its compilation hold one set's, whatever S, and on CPU it runs as
        # fast as S programs. vmap would make grouped convolutions, which XLA:CPU has no fast kernel
        # for.
        of_set = in_passes(self.predict, task, self.num_passes)
        found = jax.lax.map(lambda one: of_set(one, inputs), self.sets)
        if self.num_passes == 1:
            return found
        each: Arrays = pytrees.merged(
            {name: jnp.moveaxis(leaf, 2, 1) for name, leaf in found.items()}
        )
        return each

    @property
    def variables(self) -> Any:
        """The network's variables [S, ...], without `OWN`."""
        return pytrees.without(self.sets, OWN)

    def last_variables(self) -> Any:
        """The variables of the last set of each member, [M, ...]: of a chain its newest draw.

        Where the sets of a member are not in order, those of all sets, [S, ...].

        Raises:
            InputError: members are not their networks alone, but have a linear part beside.
        """
        last = np.arange(self.num_sets)
        if self.in_order:
            last = np.searchsorted(self.member_of, np.arange(self.num_members), side="right") - 1
        found = pytrees.at(self.variables, last)
        if any(map(np.any, jax.tree.leaves(found.get(LINEAR)))):
            raise InputError(
                "its members add a linear model to what their networks say, and other methods "
                "begin with networks: train them with config.method='deep_ensemble'"
            )
        return {name: one for name, one in found.items() if name not in (LINEAR, WIDTH)}


class OnDisk(NamedTuple):
    """What a run has on disk, of which a method's `fitted` makes what predicts.

    Attributes:
        config: of the run.
        arrays: of its newest checkpoint.
        counters: likewise.
        live: numbers of the members that have not failed.
        draws: an `ensemble.draws.store.Draws` of the run; none where its method keeps none.
    """

    config: Mapping[str, Any]
    arrays: Mapping[str, Any]
    counters: Mapping[str, int]
    live: Sequence[int]
    draws: Any
