"""The base of methods whose members leave several sets of variables, all of which predict."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble.draws.predictions import as_members
from ensemble.errors import UserError
from ensemble.fitted import Fitted, OnDisk
from ensemble.methods.members.engine import ChunkInfo, EngineState
from ensemble.methods.members.engine_method import EngineMethod
from ensemble.source import SplitInputs
from ensemble.storage.predictions import MemberPredictions

_TAKEN, _MOMENTS = "taken", "moments"
"""The entries of a checkpoint."""


class SetsState(NamedTuple):
    """Members, and what they have left.

    Attributes:
        members: as the engine moves them.
        taken: sets of variables [num_places, ...], by their names, which say their order.
        moments: what the next sets are made of, arrays [num_places, ...]; of most methods nothing.
    """

    members: EngineState
    taken: dict[str, Any]
    moments: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps taken by the members."""
        return self.members.step


class SeveralSets(EngineMethod[SetsState]):
    """Members that leave sets on their way; the arguments are those of `EngineMethod`.

    A subclass has `make_engine`, says at which steps something is taken, `stops`, and what, by
    `taken_at`.

    Attributes:
        length: what the number of steps says of the sets, in words.
    """

    charts: Mapping[str, str] = {"training loss": "train/member_[0-9]+/loss"}
    set_noun: str
    length: str

    @property
    @abc.abstractmethod
    def stops(self) -> list[int]:
        """The steps after which something is taken, ascending; the last is the end."""

    @abc.abstractmethod
    def taken_at(self, state: SetsState) -> SetsState:
        """Takes what is due at a state's step, one of `stops`."""

    def moved(self, state: SetsState) -> EngineState:
        """The members."""
        return state.members

    def init(self, rng_key: jax.Array) -> SetsState:
        """Starts the members, member k from `fold_in(rng_key, k)`."""
        return SetsState(self.started(rng_key), {}, {})

    def advance(self, state: SetsState, limit: int | None = None) -> tuple[SetsState, ChunkInfo]:
        """Takes the steps up to the next that is due, or after which something is taken."""
        end = next((one for one in self.stops if one > state.step), self.engine.goal)
        limit = end - state.step if limit is None else min(limit, end - state.step)
        members, info = self.engine.advance(state.members, limit)
        state = state._replace(members=members)
        return self.taken_at(state) if members.step in self.stops else state, info

    def has_predictions(self, state: SetsState) -> bool:
        """Whether there is a set."""
        return bool(state.taken)

    def predict_split(self, state: SetsState, name: str, draws: Any = None) -> MemberPredictions:
        """What the members say of a split by all their sets."""
        predict, inputs = self.engine.programs.predict, SplitInputs(self.task.dataset, name)
        found = [predict(variables, inputs) for _, variables in sorted(state.taken.items())]
        of_sets = {name: np.stack([one[name] for one in found], axis=1) for name in found[0]}
        return as_members(self.task.likelihood.pooled(of_sets, np.ones(len(found), int))[0])

    def fitted(self, state: SetsState, live: Sequence[int], draws: Any) -> Fitted:
        """All sets of the live members."""
        taken = self.engine.programs.placement.gather_members(state.taken)
        return _member_by_member(taken, [self.indices.index(k) for k in live], self.set_noun)

    def saved(
        self, state: SetsState, gather: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A state as `(arrays, counters)`, with the sets."""
        arrays, counters = super().saved(state, gather)
        own = {_TAKEN: state.taken, _MOMENTS: state.moments}
        return arrays | {name: gather(one) for name, one in own.items() if one}, counters

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> SetsState:
        """The inverse of `to_host`, on any devices; the members need no more of `rng_key`."""
        arrays = dict(arrays)
        own = [arrays.pop(name, {}) for name in (_TAKEN, _MOMENTS)]
        place = self.engine.programs.placement.place_members
        return SetsState(self.restored(arrays, counters), *map(place, own))

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: what differs, such as how many steps there are, and what to do.
        """
        super().check_resumable(counters, where)
        if counters["last_step"] != self.engine.num_steps:
            raise UserError(
                f"{self.length} of the run in {where} are {counters['last_step']} steps in all, "
                f"and those of this configuration {self.engine.num_steps}; keep config.num_epochs "
                "or config.num_steps as it was, or choose another --workdir"
            )


def fitted_sets(saved: OnDisk, noun: str) -> Fitted:
    """The sets of members that are on disk.

    Args:
        saved: as of `ensemble.entries.MethodEntry.fitted`.
        noun: what a set is called.

    Raises:
        UserError: there is none yet.
    """
    if _TAKEN not in saved.arrays:
        raise UserError(
            f"the members have taken {saved.counters['step']} steps, and have left no {noun} yet; "
            "wait for it"
        )
    return _member_by_member(saved.arrays[_TAKEN], saved.live, noun)


def _member_by_member(taken: Mapping[str, Any], rows: Sequence[int], noun: str) -> Fitted:
    """Sets member by member, of those [M, ...] by name."""
    sets = [taken[name] for name in sorted(taken)]

    def joined(*leaves: np.ndarray) -> np.ndarray:
        chosen = np.stack([leaf[list(rows)] for leaf in leaves], axis=1)
        return chosen.reshape(-1, *chosen.shape[2:])

    member_of = np.repeat(np.arange(len(rows)), len(sets))
    return Fitted(jax.tree.map(joined, *sets), member_of, nouns=("member", noun))
