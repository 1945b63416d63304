"""The method `sgd`: every member descends its own loss, all in one compiled step."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import serialization, struct

from ensemble.errors import UserError
from ensemble.keys import MAX_STEPS
from ensemble.method import FAILURES, Method, Stacked, Status, check_not_longer
from ensemble.methods.members.batching import Batches, check_data
from ensemble.methods.members.member import MEMBER_DEVICES, TrainState
from ensemble.methods.members.member_programs import (
    TOTALS,
    Metrics,
    Programs,
    build_programs,
    mark_padding,
    totals_from_host,
    totals_to_host,
    zero_metrics,
)
from ensemble.methods.members.optimizers import Descent, create_descent, say_what_stretching_does
from ensemble.methods.members.pretrained import WEIGHTS, Weights
from ensemble.sharding import processes, transfer
from ensemble.source import SplitInputs
from ensemble.storage.checkpoint import check_shapes
from ensemble.storage.memory import check_memory
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Learned

_MAX_IN_LINE = 8
"""Programs that may be dispatched before they are waited for, where `Placement.may_stall`."""


class SGDState(struct.PyTreeNode):
    """Everything the next chunk needs.

    Attributes:
        members: `TrainState` [num_places, ...] on the devices.
        step: steps that they have taken.
        begun: steps whose metrics have been reported.
        totals: sums of the metrics since then, of members and ensemble; None where no step is.
    """

    members: TrainState
    step: int = struct.field(pytree_node=False)
    begun: int = struct.field(pytree_node=False, default=0)
    totals: tuple[Metrics, Metrics] | None = None


class ChunkInfo(NamedTuple):
    """The diagnostics of one chunk; the arrays are still on the devices."""

    step: int
    first: int
    num_examples: int  # Per member.
    member_metrics: Metrics  # [num_places]
    ensemble_metrics: Metrics  # []
    status: jax.Array  # [num_places]
    is_cut: bool
    compiles: bool = False  # Only the first chunk of a process does.


class SGD(Method[SGDState, ChunkInfo]):
    """Stochastic gradient descent of every member, `(init, advance)` and what the loop needs.

    Args:
        config: validated, of `ensemble.config`.
        task: what the members learn.
        first: number of the first member; those before it are elsewhere.
        goal: steps to take, where it is not the number that the configuration says.
        descent: how members descend, where the configuration does not say it.
        weights: digest of what the members before them have started from, where that is known.

    Raises:
        UserError: the data do not suit it, or it takes too many steps, or too much memory.
    """

    noun = "member"
    charts: Mapping[str, str] = {"training loss": "train/member_[0-9]+/loss"}

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Learned,
        first: int = 0,
        goal: int | None = None,
        descent: Descent | None = None,
        weights: int | None = None,
    ):
        self.config = config
        self.indices = tuple(range(first, config.ensemble_size))
        self.task = task
        check_data(config, task.dataset)
        # A larger batch would be filled up with what counts nothing, and take memory and time.
        self.batch_size = min(config.batch_size, task.num_train_examples)
        self.steps_per_epoch = -(-task.num_train_examples // self.batch_size)
        self._last_step = config.num_steps or config.num_epochs * self.steps_per_epoch
        self.num_steps = self._last_step if goal is None else goal
        self._check_size()
        self.learning_rate, self.optimizer = descent or create_descent(config, self._last_step)
        self.tracked_split = "validation" if "validation" in task.dataset.sizes else None
        self.remedy = (
            f"lower config.learning_rate={config.learning_rate}, with "
            f"config.optimizer={config.optimizer!r}"  # For alone it would be set for 'sgd'.
        )
        self._weights = Weights(config, weights)
        self.batches = Batches(config, task.dataset, self.batch_size, self.num_steps)
        # K, of one program: to start one takes as long as a step of a small network.
        most = 1 if task.traits.has_convolutions else self.batches.steps_at_once(len(self.indices))
        self._steps_at_once = max(1, min(most, self.num_steps))

    @functools.cached_property
    def _programs(self) -> Programs:
        return build_programs(self.config, self.task, self.optimizer, len(self.indices))

    def _check_size(self) -> None:
        if self._last_step > MAX_STEPS:
            raise UserError(
                f"config.num_epochs={self.config.num_epochs} are {self._last_step} steps here, "
                f"which must be at most {MAX_STEPS}; lower it"
            )
        num_params = sum(leaf.size for leaf in jax.tree.leaves(self.task.params_shapes()))
        sizes = self.task.dataset.sizes
        num_predicted = sum(size for name, size in sizes.items() if name != "train")
        size, num_outputs = self.config.ensemble_size, self.task.likelihood.num_outputs
        # Parameters and momentum, which a checkpoint fetches; predictions.
        on_devices = 8 * num_params * size // processes.count()
        check_memory(
            on_devices + 4 * num_predicted * num_outputs * size // processes.count(),
            f"config.ensemble_size={size} members of {num_params:,} parameters",
            "it, or choose a smaller network",
            on_devices,
            processes.devices(self.config.num_devices),
        )

    def init(self, rng_key: jax.Array) -> SGDState:
        """Starts the members, member k from `fold_in(rng_key, k)`."""
        programs = self._programs
        given = self._weights.place(programs.placement, self.indices, self.task)
        members = programs.create(self._numbers(), rng_key, given)
        members = members.replace(status=mark_padding(programs.placement, members.status))
        return SGDState(members, step=0)

    def advance(self, state: SGDState, limit: int | None = None) -> tuple[SGDState, ChunkInfo]:
        """Takes the steps up to the next due logging, due end of an epoch, or goal.

        Returns:
            The state, and the chunk's diagnostics; neither is waited for.
        """
        programs = self._programs
        due = self._chunk_end(state)
        end = due if limit is None else min(state.step + limit, due)
        totals = list(state.totals or zero_metrics(programs.placement, self.task.likelihood))
        members = state.members
        size = self._steps_at_once
        for step in range(state.step, end, size):
            count = min(size, end - step)
            batches = self.batches.place(programs.placement, self.indices, step, count, size)
            members, *totals = programs.train_steps(
                members, *totals, batches, np.int32(step), np.int32(count)
            )
            if programs.placement.may_stall and step // size % _MAX_IN_LINE == 0:
                jax.block_until_ready(members.step)
        is_end = end % self.steps_per_epoch == 0 or end == self._last_step
        if self.config.early_stopping_epochs and is_end:
            members = self._stop_early(programs, members)
        info = ChunkInfo(
            step=end,
            first=state.step,
            num_examples=self.batches.examples_before(end)
            - self.batches.examples_before(state.begun),
            member_metrics=totals[0],
            ensemble_metrics=totals[1],
            status=jnp.copy(members.status),  # The next step takes the state's own buffers.
            is_cut=end < due,
        )
        state = state.replace(
            members=members,
            step=end,
            begun=state.begun if info.is_cut else end,
            totals=tuple(totals) if info.is_cut else None,
        )
        return state, info

    def finished(self, state: SGDState) -> bool:
        """Whether all steps have been taken."""
        return state.step >= self.num_steps

    # What the loop asks for.

    def member_examples(self, info: ChunkInfo) -> int:
        """Examples that the members have seen in a chunk, summed over members."""
        return info.num_examples * len(self.indices)

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"train/member_examples_per_second": member_examples_per_second}

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        placement = self._programs.placement
        with np.errstate(invalid="ignore"):  # 0/0 is NaN for members that took no step.
            averages = {
                name: average.total / average.count
                for name, average in placement.gather_members(info.member_metrics).items()
            }
        scalars = {"train/learning_rate": float(self.learning_rate(info.step - 1))}
        for i, k in enumerate(self.indices):
            for name, values in averages.items():
                scalars[f"train/member_{k:02d}/{name}"] = float(values[i])
        # Members that see different batches have no common prediction to score.
        if self.config.batching == "shared":
            for name, average in transfer.fetch(info.ensemble_metrics).items():
                scalars[f"train/ensemble/{name}"] = float(average.total / average.count)
        return scalars

    def status(self, info_or_state: ChunkInfo | SGDState) -> dict[int, Status]:
        """Fetches the status of the members, by number."""
        holder = info_or_state.members if isinstance(info_or_state, SGDState) else info_or_state
        values = self._programs.placement.gather_members(holder.status)
        return {k: Status(v) for k, v in zip(self.indices, values, strict=True)}

    def fault(self, state: SGDState) -> str:
        """What the task finds with the last finite variables of the first that failed."""
        variables = self._programs.placement.gather_members(state.members.variables)
        for i, one in enumerate(self.status(state).values()):
            if one in FAILURES:
                return self.task.fault(jax.tree.map(operator.itemgetter(i), variables))
        return ""

    def parameters(self, state: SGDState) -> Any:
        """Returns the shapes of the parameters of one member."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.members.params
        )

    def predictive(self, state: SGDState, live: Sequence[int], draws: Any) -> Stacked:
        """The live members' variables; there are no draws."""
        variables = self._programs.placement.gather_members(state.members.chosen_variables)
        positions = [self.indices.index(k) for k in live]
        found = jax.tree.map(lambda leaf: leaf[positions], variables)
        return Stacked(found, member_devices=self._programs.placement.member_devices)

    def has_predictions(self, state: SGDState) -> bool:
        """Always: members predict from their start on."""
        return True

    def predict_split(self, state: SGDState, name: str) -> MemberPredictions:
        """What the members say of a split."""
        inputs = SplitInputs(self.task.dataset, name)
        return MemberPredictions(self._programs.predict(state.members.chosen_variables, inputs))

    def to_host(self, state: SGDState) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)`: a nested dict of [M, ...], and plain numbers."""
        return self._saved(state, self._programs.placement.gather_members)

    def to_parts(self, state: SGDState) -> tuple[dict[str, Any], dict[str, int]]:
        """As `to_host`, but what this process writes of the members."""
        return self._saved(state, self._programs.placement.own_members)

    def _saved(
        self, state: SGDState, of_members: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        placement = self._programs.placement
        members = state.members.replace(rng_key=jax.random.key_data(state.members.rng_key))
        arrays = serialization.to_state_dict(of_members(members))
        if state.totals is not None:
            arrays[TOTALS] = totals_to_host(placement, state.totals)
        counters = {
            "step": state.step,
            "begun": state.begun,
            "num_members": len(self.indices),
            "last_step": self._last_step,
            MEMBER_DEVICES: placement.member_devices,
            **self._weights.counters,
        }
        return arrays, counters

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> SGDState:
        """The inverse of `to_host`, on any devices; the members need no more of `rng_key`."""
        totals = arrays.get(TOTALS)
        arrays = {name: leaf for name, leaf in arrays.items() if name != TOTALS}
        status = np.asarray(arrays["status"])
        if not np.isin(status, [*Status]).all():
            raise ValueError("members have a status that there is not")
        if len(status) != len(self.indices):
            raise ValueError(f"{len(status)} members cannot be {len(self.indices)}")
        self._weights.digest = counters.get(WEIGHTS)
        step = counters["step"]
        state = SGDState(members=self._place(arrays), step=step, begun=step)
        if totals is None:
            return state
        totals = totals_from_host(self._programs.placement, totals, self.task.likelihood)
        return state.replace(totals=totals, begun=counters["begun"])

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: what differs, and what to do.
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
        self._weights.check(counters, where)
        if self._last_step > counters.get("last_step", self._last_step):
            say_what_stretching_does(self.config, counters, self.learning_rate, self._last_step)
        key = "num_epochs or config.num_steps"
        check_not_longer(counters["step"], self._last_step, "steps", key, where)

    # Growth.

    def new_members(self, counters: Mapping[str, int]) -> "SGD | None":
        """The method of the members that a checkpoint with these counters lacks, if any."""
        first = counters["num_members"]
        if first >= self.config.ensemble_size:
            return None
        step, weights = counters["step"], counters.get(WEIGHTS)
        return SGD(self.config, self.task, first, goal=step, weights=weights)

    def joined(
        self,
        arrays: Mapping[str, Any],
        counters: Mapping[str, int],
        new_members: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A checkpoint's `(arrays, counters)` together with the arrays of the new members.

        Of a logging period that the checkpoint is within, the rest alone will be reported.
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

    def _numbers(self) -> jax.Array:
        """The members' numbers on the devices."""
        return self._programs.placement.place_members(np.asarray(self.indices, np.uint32))

    def _place(self, arrays: dict[str, Any]) -> TrainState:
        """Puts saved members on the devices."""
        programs, placement = self._programs, self._programs.placement
        # Only the structure of a new state is needed, not its values.
        template = jax.eval_shape(programs.create, self._numbers(), jax.random.key(0), {})
        restored = serialization.from_state_dict(template, arrays)
        check_shapes(restored, template, of_members=True)
        members = placement.place_members(restored)
        return members.replace(
            rng_key=jax.random.wrap_key_data(members.rng_key),
            status=mark_padding(placement, members.status),
        )

    # Chunks.

    def _chunk_end(self, state: SGDState) -> int:
        """The first of: next logging step, end of an epoch after which something is due, the goal.

        The very first step is a chunk of its own: it compiles.
        """
        if state.step == 0:
            return 1
        config = self.config
        epochs = {config.eval_every_epochs, config.checkpoint_every_epochs}
        if config.early_stopping_epochs:
            epochs = {1}
        periods = [config.log_every_steps, *(every * self.steps_per_epoch for every in epochs)]
        return min(*((state.step // every + 1) * every for every in periods), self.num_steps)

    # Early stopping.

    def _stop_early(self, programs: Programs, members: TrainState) -> TrainState:
        inputs = SplitInputs(self.task.dataset, "validation")
        predicted = programs.predict(members.variables, inputs)
        targets = self.task.dataset.targets("validation")
        nll = self.task.likelihood.member_nll(predicted, targets)
        return programs.keep_best(members, programs.placement.place_members(nll))
