"""A method whose members an engine moves: what the loop asks of it, the engine answers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
import ml_collections
import numpy as np

from ensemble.errors import UserError
from ensemble.fitted import Fitted
from ensemble.keys import MAX_STEPS
from ensemble.method import Method, StateT, Status, check_not_longer
from ensemble.methods.members.engine import ChunkInfo, Engine, EngineState, batch_sizes
from ensemble.methods.members.folds import Folds
from ensemble.methods.members.member_programs import TOTALS
from ensemble.sharding import processes
from ensemble.storage.memory import check_memory
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Learned

if TYPE_CHECKING:
    from ensemble.methods.members.given_weights import Weights


def duration(
    config: ml_collections.FrozenConfigDict, task: Learned, folds: Folds | None = None
) -> int:
    """Steps that the configuration asks for.

    Raises:
        UserError: they are too many.
    """
    num_steps: int = config.num_steps or config.num_epochs * batch_sizes(config, task, folds)[1]
    if num_steps > MAX_STEPS:
        raise UserError(
            f"config.num_epochs={config.num_epochs} are {num_steps} steps here, "
            f"which must be at most {MAX_STEPS}; lower it"
        )
    return num_steps


class EngineMethod(Method[StateT, ChunkInfo], abc.ABC):
    """The base of methods whose members an engine moves; their block has the keys of SGD.

    A subclass says how they move, by `make_engine`, and has `init`, `advance` and `from_host`, for
    which there are `started` and `restored`. One that keeps more than the engine does has a state
    of its own: it overrides `moved`, and `saved` for its checkpoints, whose arrays [M, ...] grow
    with the ensemble, and says its size by `num_kept`.

    Args:
        config: validated, of `ensemble.config`.
        task: what the members learn.
        others: counters of the members that are there already, see `Engine`.

    Raises:
        UserError: the data do not suit the configuration, or the members do not fit into memory.
    """

    noun = "member"

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Learned,
        others: Mapping[str, int] | None = None,
    ):
        self.config, self.task = config, task
        self.engine = engine = self.make_engine(others)
        self.indices = engine.indices
        self.num_steps, self.steps_per_epoch = engine.goal, engine.steps_per_epoch
        self.tracked_split = "validation" if "validation" in task.dataset.sizes else None
        self.may_end_early = bool(config.get("early_stopping_epochs"))
        self.remedy = self.make_remedy()
        devices = processes.devices(config.num_devices)
        check_members(config, engine.task, devices, self.num_kept)
        self._weights = _weights(config, others or {})

    def make_remedy(self) -> str:
        """What to try when all members fail."""
        config = self.config
        return (
            f"lower config.learning_rate={config.learning_rate}, with "
            f"config.optimizer={config.optimizer!r}"  # For alone it would be set for 'sgd'.
        )

    @property
    def num_kept(self) -> int:
        """Sets of variables that a member keeps beside the one that moves."""
        return 0

    @abc.abstractmethod
    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of these members, by `config` and `task`."""

    def moved(self, state: StateT) -> EngineState:
        """The engine's part of a state."""
        if not isinstance(state, EngineState):
            raise TypeError(f"{type(self).__name__}.moved must say which part the engine moves")
        return state

    def started(self, rng_key: jax.Array) -> EngineState:
        """The engine's part of a new state: members that start as `config.init_from` says."""
        return self.engine.init(rng_key, self._weights and self._weights.read(self.task))

    def restored(self, arrays: dict[str, Any], counters: Mapping[str, int]) -> EngineState:
        """The engine's part of a checkpoint, from which a subclass has taken its own arrays."""
        self._weights = _weights(self.config, counters)
        return self.engine.restored(arrays, counters)

    def finished(self, state: StateT) -> bool:
        """Whether all steps have been taken."""
        return state.step >= self.num_steps

    # What a run shows.

    def status(self, info_or_state: ChunkInfo | StateT) -> dict[int, Status]:
        """Fetches the status of the members, by number."""
        if isinstance(info_or_state, ChunkInfo):
            return self.engine.status(info_or_state)
        return self.engine.status(self.moved(info_or_state))

    def stopped_at(self, state: StateT) -> dict[int, int]:
        """The steps that members have taken who stopped early, by number."""
        return self.engine.stopped_at(self.moved(state))

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        return self.engine.scalars(info)

    def member_examples(self, info: ChunkInfo) -> int:
        """Examples that the members have seen in a chunk, summed over members."""
        return self.engine.member_examples(info)

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"train/member_examples_per_second": member_examples_per_second}

    def parameters(self, state: StateT) -> Any:
        """Returns the shapes of the parameters of one member."""
        return self.engine.parameters(self.moved(state))

    def fault(self, state: StateT) -> str:
        """What the task finds with the last finite variables of the first that failed."""
        return self.engine.fault(self.moved(state))

    # What predicts.

    def has_predictions(self, state: StateT) -> bool:
        """Always: members predict from their start on."""
        return True

    def predict_split(self, state: StateT, name: str, draws: Any = None) -> MemberPredictions:
        """What the members say of a split."""
        return self.engine.predict_split(self.moved(state), name)

    def fitted(self, state: StateT, live: Sequence[int], draws: Any) -> Fitted:
        """The live members, a set of variables each; there are no draws."""
        return self.engine.fitted(self.moved(state), live)

    # What a checkpoint holds.

    def saved(
        self, state: StateT, gather: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A state as `(arrays, counters)`, see `Engine.saved`."""
        arrays, counters = self.engine.saved(self.moved(state), gather)
        return arrays, {**counters, **(self._weights.counters if self._weights else {})}

    def to_host(self, state: StateT) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state for a checkpoint."""
        return self.saved(state, self.engine.programs.placement.gather_members)

    def to_parts(self, state: StateT) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches what this process writes of a state for a checkpoint."""
        return self.saved(state, self.engine.programs.placement.own_members)

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: the run has more members, or is getting others, or has started from other
                weights, or has gone further.
        """
        first, size = self.indices[0], self.config.ensemble_size
        saved = first + counters["num_members"]
        if size < saved:
            raise UserError(
                f"config.ensemble_size={size}, but {where} has {saved} members; keep that number "
                "or more, or choose another --workdir"
            )
        if first and size > saved:
            raise UserError(
                f"config.ensemble_size={size}, but {where} is still growing from {first} to "
                f"{saved}; let it finish with {saved} first"
            )
        if self._weights is not None:
            self._weights.check(counters, where)
        key = "num_epochs or config.num_steps"
        check_not_longer(counters["step"], self.engine.num_steps, "steps", key, where)

    # Growth.

    def new_members(self, counters: Mapping[str, int]) -> Self | None:
        """The method of the members that a checkpoint with these counters lacks, if any."""
        if counters["num_members"] >= self.config.ensemble_size:
            return None
        return type(self)(self.config, self.task, counters)

    def joined(
        self,
        arrays: Mapping[str, Any],
        counters: Mapping[str, int],
        new_members: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A checkpoint's `(arrays, counters)` together with the arrays of the new members.

        If the checkpoint is within a period of logging, only the rest of it will be reported.
        """
        members = [
            {name: leaf for name, leaf in one.items() if name != TOTALS}
            for one in (arrays, new_members)
        ]
        step, num_members = counters["step"], sum(len(one["status"]) for one in members)
        return (
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *members),
            {**counters, "step": step, "begun": step, "num_members": num_members},
        )


def check_members(
    config: ml_collections.FrozenConfigDict,
    task: Learned,
    devices: Sequence[jax.Device],
    num_kept: int = 0,
) -> None:
    """Refuses members that do not fit into memory.

    Args:
        config: of the run.
        task: what they learn.
        devices: that they are placed on.
        num_kept: sets of variables that a member keeps beside the one that moves.

    Raises:
        UserError: what they take, and what there is.
    """
    num_params = sum(leaf.size for leaf in jax.tree.leaves(task.params_shapes()))
    num_predicted = sum(size for name, size in task.dataset.sizes.items() if name != "train")
    size, num_outputs = config.ensemble_size, task.likelihood.num_outputs
    # Parameters, momentum and what is kept, which a checkpoint fetches; predictions of each set.
    on_devices = 4 * (2 + num_kept) * num_params * size // processes.count()
    num_said = num_predicted * num_outputs * size * max(num_kept, 1)
    check_memory(
        on_devices + 4 * num_said // processes.count(),
        f"config.ensemble_size={size} members of {num_params:,} parameters",
        "it, or choose a smaller network",
        on_devices,
        devices,
    )


def _weights(
    config: ml_collections.FrozenConfigDict, counters: Mapping[str, int]
) -> Weights | None:
    """The weights that members of a checkpoint with these counters began with, if there are any."""
    if not config.get("init_from"):
        return None
    from ensemble.methods.members.given_weights import Weights  # Most members start anew.

    return Weights(config, counters)
