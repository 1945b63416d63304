"""The engine of members: it places them, makes their batches, moves, stops and saves them.

A method composes an `Engine` and says how its members descend and where they start.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import serialization, struct
from jax.tree import leaves_with_path

from ensemble.config import add_missing
from ensemble.draws.predictions import predict_in_passes
from ensemble.fitted import Fitted
from ensemble.method import FAILURES, Status
from ensemble.methods.members.batching import Batches, Rows, check_data
from ensemble.methods.members.engine_keys import KEYS
from ensemble.methods.members.folds import Folds
from ensemble.methods.members.held_out import HeldOut
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
from ensemble.methods.members.optimizers import Descent, check_descent
from ensemble.network import path_name
from ensemble.notes import note
from ensemble.scoring.sections import member_terms
from ensemble.sharding import processes, transfer
from ensemble.sharding.member_parts import bytes_per_device
from ensemble.source import SplitInputs
from ensemble.storage.checkpoint import check_shapes
from ensemble.storage.memory import device_bytes, memory_bytes
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Learned

MAX_IN_LINE = 8
"""Programs that may be dispatched before they are waited for, where `Placement.may_stall`."""

_ROWS_SHARE = 50
"""Percent of what members leave of a device that training examples may take; activations the rest.
"""


class EngineState(struct.PyTreeNode):
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


def batch_sizes(
    config: ml_collections.FrozenConfigDict, task: Learned, folds: Folds | None = None
) -> tuple[int, int]:
    """Examples that a member sees in a step, and the steps in which it sees all of them."""
    num_examples = folds.num_learned if folds else task.num_train_examples
    # A larger batch would be filled up with what counts nothing, and take memory and time.
    batch_size = min(config.batch_size, num_examples)
    return batch_size, -(-num_examples // batch_size)


class Engine:
    """Moves the members of a method; nothing is placed on the devices before `init`.

    Args:
        config: of the run; the keys of `engine_keys` that its method lacks have their defaults.
        task: what the members learn.
        devices: that they are placed on.
        num_members: of the whole ensemble.
        num_steps: that the schedule of the descent has.
        descent: how the members move.
        others: counters of a checkpoint of the ensemble's first members. The engine then moves
            those that it lacks, until they have taken as many steps; None: it moves all.
        folds: of the training rows, of which each member learns its own, and stops by the others;
            None: all learn all of them, and stop by the validation split.

    Attributes:
        task: what the members learn.
        indices: numbers of the members.
        goal: steps to take: `num_steps`, or those that the others have taken.
        batch_size: examples that a member sees in a step.
        steps_per_epoch: steps in which it sees all of them.

    Raises:
        UserError: the data do not suit the configuration.
    """

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Learned,
        devices: Sequence[jax.Device],
        num_members: int,
        num_steps: int,
        descent: Descent,
        others: Mapping[str, int] | None = None,
        folds: Folds | None = None,
    ):
        complete = ml_collections.ConfigDict(config)
        add_missing(complete, KEYS)
        self._config = config = ml_collections.FrozenConfigDict(complete)
        self.task, self._devices, self._num_members = task, devices, num_members
        self.descent, self.num_steps = descent, num_steps
        check_descent(config, descent, task.params_shapes)
        self.indices = tuple(range(others["num_members"] if others else 0, num_members))
        self.goal = others["step"] if others else num_steps
        check_data(config, task.dataset, folds)
        self.batch_size, self.steps_per_epoch = batch_sizes(config, task, folds)
        self.batches = Batches(config, task.dataset, self.batch_size, self.goal, folds)
        self._folds = folds

    @functools.cached_property
    def programs(self) -> Programs:
        """The compiled functions, made when they are first asked for."""
        return build_programs(
            self._config, self.task, self.descent, len(self.indices), self._devices
        )

    @functools.cached_property
    def rows(self) -> Rows | None:
        """The training examples on the devices, if these are accelerators and have room for them.

        None: the host sends batches.
        """
        placement = self.programs.placement
        if placement.platform == "cpu" or self.task.dataset.reads_ahead:
            return None
        needed, room = self.batches.rows_bytes(placement), processes.from_main(self._room)
        if needed > room:
            note(
                f"the training examples would take {needed / 2**30:.3g} GiB of each device, over "
                f"the {room / 2**30:.3g} GiB that the members leave to them: their batches are "
                "sent from the host."
            )
            return None
        return self.batches.place_rows(placement)

    def _room(self) -> int:
        """Bytes of a device that training examples may take."""
        placement = self.programs.placement
        state = jax.eval_shape(self.programs.create, self._numbers(), jax.random.key(0), {})
        member = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
        sizes = placement.mesh.shape if placement.splits_members else {}
        shapes = (member, member.params)  # The latter for gradients.
        of_members = placement.slots * bytes_per_device(shapes, sizes, placement.annotations)
        left = max(device_bytes(self._devices) - of_members, 0)
        return min(_ROWS_SHARE * left // 100, memory_bytes())

    @functools.cached_property
    def steps_at_once(self) -> int:
        """K, of one program: to start one takes as long as a step of a small network."""
        most = self.batches.steps_at_once(len(self.indices), of_rows=self.rows is not None)
        if self.rows is None and self.task.traits.has_convolutions:
            most = 1  # XLA:CPU convolves slowly within a loop.
        return max(1, min(most, self.goal))

    @functools.cached_property
    def held_out(self) -> HeldOut | None:
        """The rows of each member's fold, where there are folds."""
        if self._folds is None:
            return None
        return HeldOut(self.task, self._folds, self.indices, self.batches, self.programs.placement)

    def init(self, rng_key: jax.Array, given: Any = None) -> EngineState:
        """Starts the members, member k from `fold_in(rng_key, k)`.

        Args:
            rng_key: of all members.
            given: what they start with in place of what the task draws: a nested dict of host
                arrays [L, ...] by the paths of variables, such as `params`, of which member k has
                row k modulo L. None: nothing.

        Raises:
            ValueError: something is given that members do not have, or of another shape.
        """
        programs = self.programs
        if given:
            self._check_given(given)
        placed = programs.placement.place_rows(given or {}, np.asarray(self.indices))
        members = programs.create(self._numbers(), rng_key, placed)
        members = members.replace(status=mark_padding(programs.placement, members.status))
        if self.held_out is not None:  # Who never gets better predicts as it began.
            members = self._stop_early(programs, members)
        return EngineState(members, step=0)

    def advance(
        self, state: EngineState, limit: int | None = None
    ) -> tuple[EngineState, ChunkInfo]:
        """Takes the steps up to the next due logging, due end of an epoch, or goal.

        Returns:
            The state, and the chunk's diagnostics; neither is waited for.
        """
        programs = self.programs
        due = self._chunk_end(state)
        end = due if limit is None else min(state.step + limit, due)
        totals = list(state.totals or zero_metrics(programs.placement, self.task.likelihood))
        members = state.members
        size, rows = self.steps_at_once, self.rows
        for step in range(state.step, end, size):
            count = min(size, end - step)
            batches = self.batches.place(
                programs.placement, self.indices, step, count, size, of_rows=rows is not None
            )
            members, *totals = programs.train_steps(
                members, *totals, rows, batches, np.int32(step), np.int32(count)
            )
            if programs.placement.may_stall and step // size % MAX_IN_LINE == 0:
                jax.block_until_ready(members.step)
        is_end = end % self.steps_per_epoch == 0 or end == self.num_steps
        if self._config.early_stopping_epochs and is_end:
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

    def finished(self, state: EngineState) -> bool:
        """Whether all steps have been taken."""
        return state.step >= self.goal

    def member_examples(self, info: ChunkInfo) -> int:
        """Examples that the members have seen in a chunk, summed over members."""
        return info.num_examples * len(self.indices)

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        placement = self.programs.placement
        with np.errstate(invalid="ignore"):  # 0/0 is NaN for members that took no step.
            averages = {
                name: average.total / average.count
                for name, average in placement.gather_members(info.member_metrics).items()
            }
        scalars = {"train/learning_rate": float(self.descent.learning_rate(info.step - 1))}
        for i, k in enumerate(self.indices):
            for name, values in averages.items():
                scalars[f"train/member_{k:02d}/{name}"] = float(values[i])
        # Members that see different batches have no common prediction to score.
        if self._config.batching == "shared":
            for name, average in transfer.fetch(info.ensemble_metrics).items():
                scalars[f"train/ensemble/{name}"] = float(average.total / average.count)
        return scalars

    def status(self, info_or_state: ChunkInfo | EngineState) -> dict[int, Status]:
        """Fetches the status of the members, by number."""
        holder = info_or_state.members if isinstance(info_or_state, EngineState) else info_or_state
        values = self.programs.placement.gather_members(holder.status)
        return {k: Status(v) for k, v in zip(self.indices, values, strict=True)}

    def stopped_at(self, state: EngineState) -> dict[int, int]:
        """Fetches the steps that members have taken who stopped early, by number."""
        steps = self.programs.placement.gather_members(state.members.step)
        status = self.status(state)
        return {k: int(steps[i]) for i, k in enumerate(status) if status[k] == Status.STOPPED_EARLY}

    def fault(self, state: EngineState) -> str:
        """What the task finds with the last finite variables of the first that failed."""
        variables = self.programs.placement.gather_members(state.members.variables)
        for i, one in enumerate(self.status(state).values()):
            if one in FAILURES:
                return self.task.fault(jax.tree.map(operator.itemgetter(i), variables))
        return ""

    def parameters(self, state: EngineState) -> Any:
        """Returns the shapes of the parameters of one member."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.members.params
        )

    def fitted(self, state: EngineState, live: Sequence[int]) -> Fitted:
        """Fetches what some members predict with.

        Args:
            state: of the members.
            live: numbers of those that are asked for.
        """
        variables = self.programs.placement.gather_members(state.members.chosen_variables)
        positions = [self.indices.index(k) for k in live]
        found = jax.tree.map(lambda leaf: leaf[positions], variables)
        return Fitted.one_each(found, self.programs.placement.member_devices)

    def predict_split(self, state: EngineState, name: str) -> MemberPredictions:
        """What the members say of a split."""
        return self._predict(state.members.chosen_variables, name)

    def _predict(self, variables: Any, name: str) -> MemberPredictions:
        return predict_in_passes(
            functools.partial(self.programs.predict, variables),
            SplitInputs(self.task.dataset, name),
            (len(self.indices), self.task.num_estimators),
            self.task.likelihood.pooled,
        )

    # What a checkpoint holds.

    def saved(
        self, state: EngineState, gather: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A state as `(arrays, counters)`: a nested dict of [M, ...], and plain numbers.

        Args:
            state: of the members.
            gather: what fetches arrays: `Placement.gather_members` all of them,
                `Placement.own_members` those that this process writes.
        """
        placement = self.programs.placement
        members = state.members.replace(rng_key=jax.random.key_data(state.members.rng_key))
        arrays = serialization.to_state_dict(gather(members))
        if state.totals is not None:
            arrays[TOTALS] = totals_to_host(placement, state.totals)
        counters = {
            "step": state.step,
            "begun": state.begun,
            "num_members": len(self.indices),
            "last_step": self.num_steps,
            MEMBER_DEVICES: placement.member_devices,
        }
        return arrays, counters

    def restored(self, arrays: dict[str, Any], counters: Mapping[str, int]) -> EngineState:
        """The inverse of `saved`, on any devices.

        Raises:
            ValueError: the arrays are those of other members.
        """
        totals = arrays.get(TOTALS)
        arrays = {name: leaf for name, leaf in arrays.items() if name != TOTALS}
        status = np.asarray(arrays["status"])
        if not np.isin(status, [*Status]).all():
            raise ValueError("members have a status that there is not")
        if len(status) != len(self.indices):
            raise ValueError(f"{len(status)} members cannot be {len(self.indices)}")
        step = counters["step"]
        state = EngineState(members=self._place(arrays), step=step, begun=step)
        if totals is None:
            return state
        totals = totals_from_host(self.programs.placement, totals, self.task.likelihood)
        return state.replace(totals=totals, begun=counters["begun"])

    def _check_given(self, given: Any) -> None:
        variables = jax.eval_shape(self.task.init_variables, jax.random.key(0))
        shapes = {path_name(path): leaf.shape for path, leaf in leaves_with_path(variables)}
        for path, leaf in leaves_with_path(given):
            if shapes.get(path_name(path)) != leaf.shape[1:]:
                raise ValueError(
                    f"{path_name(path)} of shape {leaf.shape[1:]} is no variable of a member, "
                    f"which has {shapes}"
                )

    def _numbers(self) -> jax.Array:
        """The members' numbers on the devices."""
        return self.programs.placement.place_members(np.asarray(self.indices, np.uint32))

    def _place(self, arrays: dict[str, Any]) -> TrainState:
        """Puts saved members on the devices."""
        programs, placement = self.programs, self.programs.placement
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

    def _chunk_end(self, state: EngineState) -> int:
        """The first of: next logging step, end of an epoch after which something is due, the goal.

        The very first step is a chunk of its own: it compiles.
        """
        if state.step == 0:
            return 1
        config = self._config
        epochs = {config.eval_every_epochs, config.checkpoint_every_epochs}
        if config.early_stopping_epochs:
            epochs = {1}
        periods = [config.log_every_steps, *(every * self.steps_per_epoch for every in epochs)]
        return min(*((state.step // every + 1) * every for every in periods), self.goal)

    # Early stopping.

    def _stop_early(self, programs: Programs, members: TrainState) -> TrainState:
        place = programs.placement.place_members
        if self.held_out is not None:
            return programs.keep_best(members, place(self.held_out.criteria(members.variables)))
        predicted = self._predict(members.variables, "validation")
        targets = self.task.dataset.targets("validation")
        view = self.task.likelihood.view(predicted.arrays, targets, predicted.member_of)
        nll = member_terms(view, self.task.likelihood.loss).mean(axis=1, dtype=np.float32)
        return programs.keep_best(members, place(nll))
