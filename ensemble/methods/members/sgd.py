"""The method `sgd`: every member descends its own loss, all in one pmapped step."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import serialization, struct

from ensemble.errors import UserError
from ensemble.keys import MAX_STEPS
from ensemble.method import Method, Status
from ensemble.methods.members.batching import Batches
from ensemble.methods.members.member import TrainState
from ensemble.methods.members.member_programs import (
    TOTALS,
    Programs,
    build_programs,
    mark_padding,
    totals_from_host,
    totals_to_host,
    zero_metrics,
)
from ensemble.methods.members.optimizers import create_optimizer, learning_rate_schedule
from ensemble.methods.members.train_step import Metrics
from ensemble.predictor import Predictor
from ensemble.source import SplitInputs
from ensemble.storage.checkpoint import check_shapes
from ensemble.storage.memory import check_memory
from ensemble.storage.predictions import MemberPredictions
from ensemble.tasks.supervised import Supervised, check_augmentation


class SGDState(struct.PyTreeNode):
    """Everything the next chunk needs.

    Members that train together are at the same step. When an ensemble grows, the newcomers train
    alone until they are level with the `waiting` ones, and join them.

    Attributes:
        members: `TrainState` [D, slots, ...] on the devices, of those in training.
        indices: their member numbers.
        step: steps that they have taken.
        waiting: host tree [M0, ...] of the members 0..M0-1, ahead of those in training; or None.
        waiting_step: steps that the waiting ones have taken.
        begun: steps whose metrics have been reported.
        totals: sums of the metrics since then, of members and ensemble; None where no step is.
        ticks: steps that this workdir has seen in all: what orders its checkpoints.
    """

    members: TrainState
    indices: tuple[int, ...] = struct.field(pytree_node=False)
    step: int = struct.field(pytree_node=False)
    ticks: int = struct.field(pytree_node=False)
    waiting: Any = None
    waiting_step: int = struct.field(pytree_node=False, default=0)
    begun: int = struct.field(pytree_node=False, default=0)
    totals: tuple[Metrics, Metrics] | None = None

    @property
    def furthest_step(self) -> int:
        """The last step that any member has taken."""
        return max(self.step, self.waiting_step)

    @property
    def is_growing(self) -> bool:
        """Whether other members wait for those in training."""
        return self.waiting is not None


class ChunkInfo(NamedTuple):
    """The diagnostics of one chunk; the arrays are still on the devices."""

    step: int
    first: int
    indices: tuple[int, ...]
    num_examples: int  # Per member.
    member_metrics: Metrics  # [D, slots]
    ensemble_metrics: Metrics  # [D]
    status: jax.Array  # [D, slots]
    num_waiting: int  # Members that wait for those in training.
    is_cut: bool
    compiles: bool = False  # Only the first chunk of a process does.


class SGD(Method):
    """Stochastic gradient descent of every member, `(init, advance)` and what the loop needs.

    Args:
        config: validated, of `ensemble.config`.
        task: what the members learn.

    Raises:
        UserError: there are too many steps, or members for the memory.
    """

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Supervised):
        self.config = config
        self.task, self._progress = task, task.likelihood.progress
        check_augmentation(config, task)
        # A larger batch would be filled up with what counts nothing, and take memory and time.
        self.batch_size = min(config.batch_size, task.num_train_examples)
        self.steps_per_epoch = -(-task.num_train_examples // self.batch_size)
        self.num_steps = config.num_steps or config.num_epochs * self.steps_per_epoch
        self._check_size()
        self.learning_rate = learning_rate_schedule(config, self.num_steps)
        self.optimizer = create_optimizer(config, self.learning_rate)
        self.tracked_split = "validation" if "validation" in task.dataset.sizes else None
        self.remedy = f"lower config.learning_rate={config.learning_rate}"
        self._programs = functools.cache(
            functools.partial(build_programs, config, task, self.optimizer)
        )
        self._batches = Batches(config, task, self.batch_size)

    def _check_size(self) -> None:
        if self.num_steps > MAX_STEPS:
            raise UserError(
                f"config.num_epochs={self.config.num_epochs} are {self.num_steps} steps here, "
                f"which must be at most {MAX_STEPS}; lower it"
            )
        num_params = sum(leaf.size for leaf in jax.tree.leaves(self.task.params_shapes()))
        sizes = self.task.dataset.sizes
        num_predicted = sum(size for name, size in sizes.items() if name != "train")
        # Parameters and momentum, on the devices and as a checkpoint fetches them; predictions.
        num_floats = 4 * num_params + num_predicted * self.task.likelihood.num_outputs
        size = self.config.ensemble_size
        what = f"config.ensemble_size={size} members of {num_params:,} parameters"
        check_memory(4 * num_floats * size, what, "it, or choose a smaller network")

    # The protocol of a method.

    def init(self, rng_key: jax.Array) -> SGDState:
        """Starts members 0..M-1, member k from `fold_in(rng_key, k)`."""
        return self._start(rng_key, range(self.config.ensemble_size), ticks=0)

    def advance(self, state: SGDState, limit: int | None = None) -> tuple[SGDState, ChunkInfo]:
        """Takes the steps up to the next due logging, end of epoch, or goal.

        Returns:
            The state, and the chunk's diagnostics; neither is waited for.
        """
        may_join = state.waiting is not None and state.totals is None
        if may_join and (state.step == state.waiting_step or not self.num_active(state)):
            state = self.join(state)
        programs = self._programs(len(state.indices))
        due = self._chunk_end(state)
        end = due if limit is None else min(state.step + limit, due)
        totals = list(state.totals or zero_metrics(programs.placement, self._progress))
        members = state.members
        for step in range(state.step, end):
            batch = self._batches.place(programs.placement, state.indices, step)
            members, *totals = programs.train_step(members, *totals, batch, np.int32(step))
        is_end = end % self.steps_per_epoch == 0 or end == self.num_steps
        if self.config.early_stopping_epochs and is_end:
            members = self._stop_early(programs, members)
        info = ChunkInfo(
            step=end,
            first=state.step,
            indices=state.indices,
            num_examples=self._batches.examples_before(end)
            - self._batches.examples_before(state.begun),
            member_metrics=totals[0],
            ensemble_metrics=totals[1],
            num_waiting=state.indices[0],
            status=jnp.copy(members.status),  # The next step takes the state's own buffers.
            is_cut=end < due,
        )
        state = state.replace(
            members=members,
            step=end,
            ticks=state.ticks + end - state.step,
            begun=state.begun if info.is_cut else end,
            totals=tuple(totals) if info.is_cut else None,
        )
        return state, info

    def num_active(self, state: SGDState) -> int:
        """Members in training that still learn; waits for the last chunk."""
        return sum(status == Status.ACTIVE for status in self.status(state).values())

    def finished(self, state: SGDState) -> bool:
        """Whether all members have taken all their steps; those that wait are not behind."""
        return state.step >= self.num_steps

    # What the loop asks for.

    def epoch(self, step: int) -> float:
        """Epochs that `step` steps are."""
        return step / self.steps_per_epoch

    def member_examples(self, info: ChunkInfo) -> int:
        """Examples that the members have seen in a chunk, summed over members."""
        return info.num_examples * len(info.indices)

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"train/member_examples_per_second": member_examples_per_second}

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        placement = self._programs(len(info.indices)).placement
        with np.errstate(invalid="ignore"):  # 0/0 is NaN for members that took no step.
            averages = {
                name: average.total / average.count
                for name, average in placement.gather_members(info.member_metrics).items()
            }
        scalars = {"train/learning_rate": float(self.learning_rate(info.step - 1))}
        for i, k in enumerate(info.indices):
            for name, values in averages.items():
                scalars[f"train/member_{k:02d}/{name}"] = float(values[i])
        # Members that see different batches have no common prediction to score, and newcomers
        # that catch up are not the ensemble.
        if self.config.batching == "shared" and info.indices[0] == 0:
            for name, average in info.ensemble_metrics.items():
                scalars[f"train/ensemble/{name}"] = float(average.total[0] / average.count[0])
        return scalars

    def status(self, info_or_state: ChunkInfo | SGDState) -> dict[int, Status]:
        """Fetches the status of the members in training, by member number."""
        status = (
            info_or_state.status
            if isinstance(info_or_state, ChunkInfo)
            else info_or_state.members.status
        )
        placement = self._programs(len(info_or_state.indices)).placement
        values = placement.gather_members(status)
        return {k: Status(v) for k, v in zip(info_or_state.indices, values, strict=True)}

    def parameters(self, state: SGDState) -> Any:
        """Returns the parameters of one member."""
        return jax.tree.map(lambda leaf: leaf[0, 0], state.members.params)

    def predictor(self, state: SGDState, live: Sequence[int], draws: Any) -> Predictor:
        """The live members as a function; there are no draws."""
        placement = self._programs(len(state.indices)).placement
        variables = placement.gather_members(state.members.chosen_variables)
        positions = [state.indices.index(k) for k in live]
        variables = jax.tree.map(lambda leaf: leaf[positions], variables)
        return Predictor(self.task, variables, live, self.config.num_devices)

    def predict_split(self, state: SGDState, name: str) -> MemberPredictions:
        """What the members in training say of a split."""
        programs = self._programs(len(state.indices))
        inputs = SplitInputs(self.task.dataset, name)
        return MemberPredictions(programs.predict(state.members.chosen_variables, inputs))

    # To and from the host: what a checkpoint holds.

    def to_host(self, state: SGDState) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)`: a nested dict of [M, ...], and plain numbers."""
        placement = self._programs(len(state.indices)).placement
        members = state.members.replace(rng_key=jax.random.key_data(state.members.rng_key))
        arrays = serialization.to_state_dict(placement.gather_members(members))
        if state.waiting is not None:
            arrays = jax.tree.map(lambda *leaves: np.concatenate(leaves), state.waiting, arrays)
        if state.totals is not None:
            arrays[TOTALS] = totals_to_host(placement, state.totals)
        counters = {
            "step": state.step,
            "begun": state.begun,
            "ticks": state.ticks,
            "num_members": state.indices[-1] + 1,
            "num_waiting": state.indices[0],
            "waiting_step": state.waiting_step,
        }
        return arrays, counters

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> SGDState:
        """The inverse of `to_host`, on any devices and for any ensemble at least as large.

        Args:
            rng_key: as for `init`; members beyond those saved start from it.
            arrays: [M0, ...], M0 <= M; or M is the number of the waiting members, and those that
                have not joined them are dropped.
            counters: beside the arrays.
        """
        saved, size = counters["num_members"], self.config.ensemble_size
        totals = arrays.get(TOTALS)
        arrays = {name: leaf for name, leaf in arrays.items() if name != TOTALS}
        if not 0 <= counters["num_waiting"] < saved:
            raise ValueError(f"{counters['num_waiting']} of {saved} members cannot be waiting")
        if not np.isin(arrays["status"], [*Status]).all():
            raise ValueError("members have a status that there is not")
        if saved > size:
            arrays = jax.tree.map(lambda leaf: leaf[:size], arrays)
            counters = {**counters, "step": counters["waiting_step"], "num_waiting": 0}
            saved = size
        if saved < size:
            state = self._start(rng_key, range(saved, size), ticks=counters["ticks"])
            # Of a logging period that those saved are within, the rest alone will be reported.
            return state.replace(waiting=arrays, waiting_step=counters["step"])
        indices = tuple(range(counters["num_waiting"], saved))
        split = len(indices)
        state = SGDState(
            members=self._place(indices, jax.tree.map(lambda leaf: leaf[-split:], arrays)),
            indices=indices,
            step=counters["step"],
            ticks=counters["ticks"],
            begun=counters["step"],
        )
        if totals is not None and saved == counters["num_members"]:
            placement = self._programs(split).placement
            totals = totals_from_host(placement, totals, self._progress)
            state = state.replace(totals=totals, begun=counters["begun"])
        if counters["num_waiting"]:
            waiting = jax.tree.map(lambda leaf: leaf[:-split], arrays)
            state = state.replace(waiting=waiting, waiting_step=counters["waiting_step"])
        return state

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: what differs, and what to do.
        """
        size, saved, waiting = (
            self.config.ensemble_size,
            counters["num_members"],
            counters["num_waiting"],
        )
        growing = counters["step"] < counters["waiting_step"]
        if size < saved and not (growing and size == waiting):
            raise UserError(
                f"config.ensemble_size={size}, but {where} has {saved} members; keep that number "
                "or more, or choose another --workdir"
            )
        if size > saved and growing:
            raise UserError(
                f"config.ensemble_size={size}, but {where} is still growing from {waiting} to "
                f"{saved}; let it finish with {saved} first"
            )
        taken = max(counters["step"], counters["waiting_step"])
        if self.num_steps < taken:
            raise UserError(
                f"the run in {where} has taken {taken} steps, more than the {self.num_steps} of "
                "this configuration; raise config.num_epochs or config.num_steps"
            )

    # Growth.

    def _start(self, rng_key: jax.Array, indices: Sequence[int], ticks: int) -> SGDState:
        programs = self._programs(len(indices))
        placement = programs.placement
        numbers = placement.place_members(np.asarray(indices, np.uint32))
        members = programs.create(numbers, rng_key)
        members = members.replace(status=mark_padding(placement, members.status))
        return SGDState(members, tuple(indices), step=0, ticks=ticks)

    def join(self, state: SGDState) -> SGDState:
        """Makes newcomers and the members that wait for them one ensemble.

        The newcomers are level, or none of them learns any more.
        """
        if state.waiting is None:
            return state
        arrays, counters = self.to_host(state.replace(totals=None))
        indices, step = tuple(range(counters["num_members"])), state.waiting_step
        return SGDState(self._place(indices, arrays), indices, step, state.ticks, begun=step)

    def _place(self, indices: Sequence[int], arrays: dict[str, Any]) -> TrainState:
        """Puts saved members on the devices."""
        programs = self._programs(len(indices))
        placement = programs.placement
        numbers = placement.place_members(np.asarray(indices, np.uint32))
        # Only the structure of a new state is needed, not its values.
        template = jax.eval_shape(programs.create, numbers, jax.random.key(0))
        restored = serialization.from_state_dict(template, arrays)
        check_shapes(restored, template, num_leading=2)
        members = placement.place_members(restored)
        return members.replace(
            rng_key=jax.random.wrap_key_data(members.rng_key),
            status=mark_padding(placement, members.status),
        )

    # Chunks.

    def _chunk_end(self, state: SGDState) -> int:
        """The first of: next logging step, end of the epoch, level with the waiting, the goal.

        The very first step is a chunk of its own: it compiles.
        """
        if state.step == 0:
            return 1
        every, epoch = self.config.log_every_steps, self.steps_per_epoch
        goal = self.num_steps if state.waiting is None else state.waiting_step
        return min((state.step // every + 1) * every, (state.step // epoch + 1) * epoch, goal)

    # Early stopping.

    def _stop_early(self, programs: Programs, members: TrainState) -> TrainState:
        inputs = SplitInputs(self.task.dataset, "validation")
        predicted = programs.predict(members.variables, inputs)
        targets = self.task.dataset.targets("validation")
        nll = self.task.likelihood.member_nll(predicted, targets)
        return programs.keep_best(members, programs.placement.place_members(nll))
