"""The protocol that every method follows: how members move, and what the loop asks them for.

`ensemble.methods` has those that there are; the loop, the monitor and the report know little more
of them than this. What one of them has no use for has a default.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ensemble.errors import UserError

if TYPE_CHECKING:
    import jax
    import ml_collections

    from ensemble.draws.store import Draws
    from ensemble.predictor import Predictor
    from ensemble.storage.predictions import MemberPredictions
    from ensemble.storage.workdir import Workdir
    from ensemble.tasks.supervised import Supervised


class State(Protocol):
    """Everything the next step needs: a pytree."""

    @property
    def step(self) -> int:
        """Steps taken by the members; a step of a sampler is a draw."""


class Info(Protocol):
    """The diagnostics of one chunk of steps, still on the devices."""

    @property
    def step(self) -> int:
        """The step after the chunk."""

    @property
    def first(self) -> int:
        """The step before the chunk."""

    @property
    def compiles(self) -> bool:
        """Whether a program was compiled for this chunk: its time then says nothing of speed."""

    @property
    def is_cut(self) -> bool:
        """Whether a limit ended the chunk: a later one reports on its steps, together with its own.

        The state keeps what there is to report until then.
        """


class Method(Protocol):
    """How members move.

    Attributes:
        config: of the run.
        task: what is learned.
        num_steps: the goal.
        steps_per_epoch: the unit of `config.eval_every_epochs` and its like.
        tracked_split: the split that is scored on the way; None if there is none.
        indices: numbers of the members.
        noun: what a member is called: a sampler's is a chain.
        remedy: what to try when all members fail.
    """

    config: ml_collections.FrozenConfigDict
    task: Supervised
    num_steps: int
    steps_per_epoch: int
    tracked_split: str | None
    indices: tuple[int, ...]
    noun: str = "member"
    remedy: str

    def init(self, rng_key: jax.Array) -> Any:
        """Starts all members, member k from `fold_in(rng_key, k)`."""

    def advance(self, state: Any, limit: int | None = None) -> tuple[Any, Any]:
        """Takes one chunk of steps and returns `(state, info)`; neither is waited for.

        A chunk ends where something is due: a line of metrics, the end of an epoch, the goal. A
        limit may cut it short, which changes no result.

        Args:
            state: it is used up.
            limit: steps to take at most, from 1; a method may take more where it cannot stop.
        """

    def finished(self, state: Any) -> bool:
        """Whether all steps have been taken."""

    # Diagnostics.

    def epoch(self, step: int) -> float:
        """Epochs that `step` steps are."""

    def status(self, info_or_state: Any) -> dict[int, Status]:
        """The status of the members, by number; waits for them."""

    def scalars(self, info: Any) -> dict[str, float]:
        """A chunk's diagnostics by tag."""

    def member_examples(self, info: Any) -> int:
        """Examples that the members have learned from in a chunk, summed over members."""

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed of a chunk by tag."""

    def monitor_scalars(
        self, state: Any, draws: Draws, member_examples_per_second: float | None
    ) -> dict[str, float]:
        """What an evaluation shows beside scores, by tag, at so much speed over the whole run."""
        return {}

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What of a chunk's and an evaluation's scalars a log line shows beside scores."""
        return {}

    def has_converged(self, scalars: Mapping[str, float]) -> bool:
        """Whether `monitor_scalars` say that the run may end; by default never."""
        return False

    def figures(self, state: Any) -> dict[str, Any]:
        """Pictures of what is not scored on a split, by tag; by default none."""
        return {}

    # Predictions.

    def parameters(self, state: Any) -> Any:
        """The parameters of one member."""

    def has_predictions(self, state: Any) -> bool:
        """Whether `predict_split` has something to say; by default always."""
        return True

    def predict_split(self, state: Any, name: str) -> MemberPredictions:
        """What the members say of a split."""

    def predictor(self, state: Any, live: Sequence[int], draws: Draws) -> Predictor | None:
        """The live members as a function; of several processes only the main one needs it."""

    # What is left on disk.

    def record(self, info: Any, draws: Draws) -> None:
        """Appends a chunk's draws to those on disk; by default there are none."""
        return None

    def num_recorded(self, state: Any) -> int:
        """Draws that `record` has appended when a state is reached; by default none."""
        return 0

    def report_sections(
        self, state: Any, draws: Draws, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """Entries of report.json that are this method's own; by default none."""
        return {}

    def write_results(self, state: Any, work: Workdir, draws: Draws) -> None:
        """Writes files that are this method's own; by default none."""
        return None

    def to_host(self, state: Any) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)` for a checkpoint."""

    def from_host(self, rng_key: jax.Array, arrays: Any, counters: dict[str, int]) -> Any:
        """The inverse of `to_host`, on any devices."""

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Raises `UserError` where this configuration cannot go on from these counters."""


@runtime_checkable
class Growing(Protocol):
    """What a method has beside `Method` where an ensemble may get more members later."""

    def newcomers(self, counters: Mapping[str, int]) -> Method | None:
        """The method of the members that a checkpoint with these counters lacks.

        They take as many steps as the others have taken. None where no member is lacking.
        """

    def joined(
        self,
        arrays: Mapping[str, Any],
        counters: Mapping[str, int],
        newcomers: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A checkpoint's `(arrays, counters)` together with the arrays of newcomers."""


def check_not_longer(taken: int, goal: int, unit: str, key: str, where: str) -> None:
    """Refuses to go on with a run that has gone further than this configuration does.

    Args:
        taken: steps of the run.
        goal: of the configuration.
        unit: what a step is called.
        key: of the configuration, that says how many.
        where: the run is.

    Raises:
        UserError: it has.
    """
    if taken > goal:
        raise UserError(
            f"the run in {where} has taken {taken} {unit}, more than the {goal} of this "
            f"configuration; raise config.{key}"
        )


class Status(enum.IntEnum):
    """Why a member trains, or why not: the one mask, with its reasons."""

    ACTIVE = 0
    PADDING = 1
    STOPPED_EARLY = 2
    NON_FINITE = 3
    STUCK = 4


FAILURES = {Status.NON_FINITE: "non-finite", Status.STUCK: "stuck"}
"""The statuses of members that are left out of every mean, and what they have become."""
