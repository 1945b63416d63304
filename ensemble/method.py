"""The protocol that every method follows: how members move, and what the loop asks them for.

`ensemble.methods` has those that there are; the loop, the monitor and the report know little more
of them than this. What only some of them have is a protocol of its own, such as `Recorded`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from ensemble.errors import UserError

if TYPE_CHECKING:
    import jax
    import ml_collections
    from matplotlib.figure import Figure

    from ensemble.draws.store import Draws
    from ensemble.fitted import Fitted
    from ensemble.storage.predictions import MemberPredictions
    from ensemble.storage.workdir import Workdir
    from ensemble.task import Task


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


StateT = TypeVar("StateT", bound=State)
"""The state of a method."""
StateIn = TypeVar("StateIn", bound=State, contravariant=True)
InfoT = TypeVar("InfoT", bound=Info)
"""The info of a method."""
InfoIn = TypeVar("InfoIn", bound=Info, contravariant=True)


class Method(Protocol[StateT, InfoT]):
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
        may_end_early: whether a run may end before the goal, as its configuration says.
    """

    config: ml_collections.FrozenConfigDict
    task: Task
    num_steps: int
    steps_per_epoch: int
    tracked_split: str | None
    indices: tuple[int, ...]
    noun: str
    remedy: str
    may_end_early: bool = False

    def init(self, rng_key: jax.Array) -> StateT:
        """Starts all members, member k from `fold_in(rng_key, k)`."""

    def advance(self, state: StateT, limit: int | None = None) -> tuple[StateT, InfoT]:
        """Takes one chunk of steps and returns `(state, info)`; neither is waited for.

        A chunk ends where something is due: a line of metrics, the end of an epoch, the goal. A
        limit may cut it short, which changes no result.

        Args:
            state: it is used up.
            limit: steps to take at most, from 1; a method may take more where it cannot stop.
        """

    def finished(self, state: StateT) -> bool:
        """Whether all steps have been taken."""

    # What a run shows.

    def status(self, info_or_state: InfoT | StateT) -> dict[int, Status]:
        """The status of the members, by number; waits for them."""

    def scalars(self, info: InfoT) -> dict[str, float]:
        """A chunk's diagnostics by tag."""

    def member_examples(self, info: InfoT) -> int:
        """Examples that the members have learned from in a chunk, summed over members."""

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed of a chunk by tag."""

    def parameters(self, state: StateT) -> Any:
        """The parameters of one member, or their shapes."""

    # What a checkpoint holds.

    def to_host(self, state: StateT) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)` for a checkpoint."""

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> StateT:
        """The inverse of `to_host`, on any devices."""

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Raises `UserError` where this configuration cannot go on from these counters."""


# What a method may have beside: the loop, the monitor and the report ask with `isinstance`.


@runtime_checkable
class Spread(Protocol[StateIn]):
    """A method whose state no process needs to have whole, not even at a checkpoint."""

    def to_parts(self, state: StateIn) -> tuple[dict[str, Any], dict[str, int]]:
        """Does what `to_host` does, but returns of arrays only what this process writes, as
        `Parts`.

        `from_host` takes arrays that are `Distant`, of which each process reads its part.
        """


@runtime_checkable
class PredictingMethod(Protocol[StateIn]):
    """A method whose members predict the examples of splits."""

    def has_predictions(self, state: StateIn) -> bool:
        """Whether `predict_split` has something to say yet."""

    def predict_split(self, state: StateIn, name: str, draws: Draws) -> MemberPredictions:
        """What the members say of a split; chains by the draws that were kept so far."""

    def fitted(self, state: StateIn, live: Sequence[int], draws: Draws) -> Fitted | None:
        """What the live members predict with; of several processes only the main one needs it."""


@runtime_checkable
class Reporting(Protocol[StateIn]):
    """A method that has something of its own to report."""

    def report_sections(
        self, state: StateIn, draws: Draws, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """Entries of report.json that are this method's own."""


@runtime_checkable
class Keeping(Protocol[StateIn]):
    """A method that keeps more than checkpoints and predictions."""

    def write_results(self, state: StateIn, work: Workdir, draws: Draws) -> None:
        """Writes files that are this method's own."""


@runtime_checkable
class Diagnosed(Reporting[StateIn], Keeping[StateIn], Protocol[StateIn]):
    """A method that says how far its members are from having converged."""

    def monitor_scalars(
        self, state: StateIn, draws: Draws, member_examples_per_second: float | None
    ) -> dict[str, float]:
        """What an evaluation shows beside scores, by tag, at so much speed over the whole run."""

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What of a chunk's and an evaluation's scalars a log line shows beside scores."""

    def has_converged(self, scalars: Mapping[str, float]) -> bool:
        """Whether `monitor_scalars` say that the run may end."""


@runtime_checkable
class ToArviz(Protocol):
    """A method whose draws may be those of a model, which ArviZ takes."""

    def inference_data(self) -> Any:
        """An `arviz.InferenceData` of the draws, after `report_sections`; None of a network."""


@runtime_checkable
class Examined(Protocol[StateIn]):
    """A method that looks for the fault of a failed member where its settings are not to blame."""

    def fault(self, state: StateIn) -> str:
        """What is at fault, and a remedy; empty where nothing but the method's settings is."""


@runtime_checkable
class StoppingEarly(Protocol[StateIn]):
    """A method whose members may stop before the others, each at its best."""

    def stopped_at(self, state: StateIn) -> dict[int, int]:
        """The steps that members have taken who stopped early, by number."""


@runtime_checkable
class Illustrated(Protocol[StateIn]):
    """A method with pictures of what is not scored on a split."""

    def figures(self, state: StateIn) -> dict[str, Figure]:
        """The pictures by tag."""


@runtime_checkable
class Charted(Protocol):
    """A method whose `scalars` have one curve for each member.

    Attributes:
        charts: those that are to be seen over each other: a title, and a pattern of their tags.
    """

    charts: Mapping[str, str]


@runtime_checkable
class Recorded(Protocol[StateIn, InfoIn]):
    """A method whose draws are kept on disk."""

    def record(self, info: InfoIn, draws: Draws) -> None:
        """Appends a chunk's draws to those on disk."""

    def num_recorded(self, state: StateIn) -> int:
        """Draws that `record` has appended when a state is reached."""


@runtime_checkable
class Growing(Protocol[StateT, InfoT]):
    """A method whose ensemble may get more members later."""

    def new_members(self, counters: Mapping[str, int]) -> Method[StateT, InfoT] | None:
        """The method of the members that a checkpoint with these counters lacks.

        They take as many steps as the others have taken. None where no member is lacking.
        """

    def joined(
        self,
        arrays: Mapping[str, Any],
        counters: Mapping[str, int],
        new_members: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A checkpoint's `(arrays, counters)` together with the arrays of the new members."""


def describe(method: Method[StateT, InfoT]) -> dict[str, Any]:
    """What a checkpoint says of what a method learns, JSON-ready."""
    return method.task.describe()


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
