"""What the members see at a step: a function of the seed, the step and, if independent, of them."""

import collections
import concurrent.futures
import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from flax import struct

from ensemble import target_rows
from ensemble.errors import UserError
from ensemble.methods.members.augmenting import check_augmentation
from ensemble.methods.members.folds import Folds
from ensemble.sharding.placement import Placement
from ensemble.source import Source
from ensemble.sources.batches import epoch_batches
from ensemble.sources.labels import class_weights

_MAX_AT_ONCE = 64
"""Steps of one program, at most."""

_MAX_BYTES = 1 << 22
"""The size of the inputs of several batches, or of their numbers, that are on their way to one
program."""

_ROW_BYTES, _WEIGHT_BYTES = 4, 4
"""Bytes of the number of an example, and of its weight."""
_LANES = 128
"""Numbers of which a TPU's rows are multiples."""

_MAX_AHEAD_BYTES = 1 << 26
"""The size of the inputs of batches that are read ahead."""


class Batch(struct.PyTreeNode):
    """One batch, as the host hands it over and as a device sees it.

    Attributes:
        mask: [B] float32, one for examples and zero for padding; every leaf is [slots, B, ...]
            where the members have batches of their own.
        positions: [B] int32 in the whole batch, whatever the slice: what augmentation's keys
            are folded from, so that they do not depend on the number of devices.
        inputs: [B, ...] raw, uint8 images or float32.
        targets: [B].
        weights: [B] float32, the mask times how much an example counts.
        rows: [B] int32, numbers of `Rows` in place of inputs, targets and weights.
    """

    mask: Any
    positions: Any
    inputs: Any = None
    targets: Any = None
    weights: Any = None
    rows: Any = None


class Rows(struct.PyTreeNode):
    """All training examples, whole on every device.

    Attributes:
        inputs: [N, F], raw: flat, for an accelerator would fill up small axes.
        targets: [N].
        weights: [N] float32, how much each counts; None where all count the same.
        input_shape: of an example.
    """

    inputs: Any
    targets: Any
    weights: Any
    input_shape: tuple[int, ...] = struct.field(pytree_node=False)

    def batch(self, chosen: Batch) -> Batch:
        """A batch of the rows that are chosen, as the host would have handed it over."""
        rows = chosen.rows
        inputs, targets, weights = jax.tree.map(
            lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"),
            (self.inputs, self.targets, self.weights),
        )
        return chosen.replace(
            inputs=inputs.reshape(*rows.shape, *self.input_shape),
            targets=targets,
            weights=chosen.mask if weights is None else chosen.mask * weights,
            rows=None,
        )


class Part(NamedTuple):
    """What the members see in some steps, on the host.

    Attributes:
        examples: numbers of the training examples, [K, B], or [M, K, B] if batches are independent.
        mask: float32, the same shape: 0 where an example only fills up a batch.
        inputs: [..., *input_shape].
        targets: [...].
    """

    examples: np.ndarray
    mask: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray


class _Coming(NamedTuple):
    step: int
    read: concurrent.futures.Future[list[Part]]
    place: int  # Of the step among those that are read with it.


class ReadAhead:
    """Reads steps in their order before they are asked for, several at once.

    To begin to read a shard costs as much as some records of it.

    Args:
        read: given a step and a number, reads so many steps from that one.
        depth: steps to have read, or to be reading, at least 1.
        end: the first step that is none any more.

    Attributes:
        seconds_waited: how long it was waited for steps that were not read yet.
    """

    def __init__(self, read: Callable[[int, int], list[Part]], depth: int, end: int):
        self._read, self._depth, self._end = read, depth, end
        self._at_once = max(1, depth // 4)
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "read_ahead")
        self._next: collections.deque[_Coming] = collections.deque()
        self.seconds_waited = 0.0

    def get(self, step: int) -> Part:
        """Returns a step, and has those after it read.

        Raises:
            UserError: it cannot be read, or one of those that are read with it.
        """
        while self._next and self._next[0].step != step:  # A run goes on elsewhere.
            self._next.popleft().read.cancel()
        first = self._next[-1].step + 1 if self._next else step
        while first < self._end and first + self._at_once <= step + 1 + self._depth:
            end = min(first + self._at_once, self._end)
            read = self._pool.submit(self._read, first, end - first)
            self._next.extend(_Coming(one, read, one - first) for one in range(first, end))
            first = end
        began = time.perf_counter()
        coming = self._next.popleft()
        found = coming.read.result()[coming.place]
        self.seconds_waited += time.perf_counter() - began
        return found


class Batches:
    """The batches of a run, in the order that its seed gives.

    Args:
        config: of the run.
        source: of the training examples.
        batch_size: B.
        num_steps: of the run; no batch behind them is read ahead.
        folds: of the rows, of which each member learns its own; None: all learn all of them.

    Raises:
        UserError: the class weights do not suit the data.
    """

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        source: Source,
        batch_size: int,
        num_steps: int,
        folds: Folds | None = None,
    ):
        self._config = config
        self._source = source
        self._folds = folds
        num_examples = folds.num_learned if folds else source.sizes["train"]
        self._num_examples = num_examples
        self._batch_size, self._num_steps = batch_size, num_steps
        self._steps_per_epoch = -(-num_examples // batch_size)
        self._class_weights = None
        if config.class_weights != "none":
            if not source.class_names:
                raise UserError(
                    f"config.class_weights={config.class_weights!r} is for classes, and the "
                    "targets are numbers; set it to 'none'"
                )
            self._class_weights = class_weights(
                config.class_weights, source.targets("train"), len(source.class_names)
            )
        self._steps_axis = 0 if config.batching == "shared" else 1
        self.ahead = functools.lru_cache(maxsize=1)(self._read_ahead)
        self._epoch = functools.lru_cache(maxsize=2)(self._build_epoch)
        self._full = functools.lru_cache(maxsize=1)(self._place_full)

    def steps_at_once(self, num_members: int, of_rows: bool = False) -> int:
        """Steps whose batches may be on their way to one program together, at least 1.

        Args:
            num_members: of all processes.
            of_rows: whether only numbers of rows are on their way.
        """
        most = min(_MAX_AT_ONCE, self._config.log_every_steps)
        example = _ROW_BYTES if of_rows else self._example_bytes
        return max(1, min(most, _MAX_BYTES // self._batch_bytes(num_members, example)))

    def _batch_bytes(self, num_members: int, example_bytes: int) -> int:
        """The bytes of one step's batches."""
        batch = self._batch_size * example_bytes
        return batch * num_members if self._config.batching == "independent" else batch

    @property
    def _example_bytes(self) -> int:
        return math.prod(self._source.input_shape) * self._source.input_dtype.itemsize

    def rows_bytes(self, placement: Placement) -> int:
        """What `place_rows` puts on each device, at most."""
        num_values = math.prod(self._source.input_shape)
        if placement.platform == "tpu":  # Which fills a row up.
            num_values += -num_values % _LANES
        row = num_values * self._source.input_dtype.itemsize + _WEIGHT_BYTES
        return self._source.sizes["train"] * row + self._source.targets("train").nbytes

    def place_rows(self, placement: Placement) -> Rows:
        """Puts all training examples on every device."""
        inputs, targets = self._source.read("train", slice(None))
        weights = self.weights(np.arange(len(targets)), targets)
        weights = None if weights is None else weights.astype(np.float32)
        targets, weights = placement.place_everywhere((target_rows.on_devices(targets), weights))
        flat = placement.place_by_rows(inputs.reshape(len(targets), -1))
        return Rows(flat, targets, weights, tuple(self._source.input_shape))

    def examples_before(self, step: int) -> int:
        """Training examples that one member has seen before a step."""
        epoch, step_in_epoch = divmod(step, self._steps_per_epoch)
        in_epoch = min(step_in_epoch * self._batch_size, self._num_examples)
        return epoch * self._num_examples + in_epoch

    def _build_epoch(self, epoch: int, indices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Example numbers and mask of an epoch: [steps, B], or [M, steps, B] if independent."""
        config = self._config
        order = functools.partial(
            epoch_batches, self._num_examples, self._batch_size, config.seed, epoch
        )
        if config.batching == "shared":
            return order()
        if self._folds is None:
            examples, masks = zip(*(order(member=k) for k in indices), strict=True)
            return np.stack(examples), np.stack(masks)
        found = [self._epoch_of(epoch, k, self._folds.learned(k)) for k in indices]
        examples, masks = zip(*found, strict=True)
        return np.stack(examples), np.stack(masks)

    def _epoch_of(self, epoch: int, k: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Example numbers and mask [steps, B] of a member that learns some rows.

        A member with fewer of them than another begins its order again: all take equal steps.
        """
        order, mask = epoch_batches(
            len(rows), self._batch_size, self._config.seed, epoch, k, length=self._num_examples
        )
        return rows[order].astype(np.int32), mask

    def place(
        self,
        placement: Placement,
        indices: tuple[int, ...],
        step: int,
        count: int,
        size: int,
        of_rows: bool = False,
    ) -> Batch:
        """Builds the batches of some steps on the devices: a function of the seed and the steps.

        Args:
            placement: of the members.
            indices: their numbers.
            step: the first.
            count: how many there are.
            size: K, as how many they are placed; what fills them up is for no step.
            of_rows: whether the devices have `Rows`, and only these numbers are sent.
        """
        if self._config.batching == "independent":
            indices = tuple(indices[k] for k in placement.members_here)
        read = self._numbers if of_rows else self._read
        found: tuple[np.ndarray, ...] = read(indices, step, count)
        if count < size:
            fill = np.minimum(np.arange(size), count - 1)
            found = tuple(np.take(one, fill, axis=self._steps_axis) for one in found)
        examples, mask, *contents = found
        arrays = {"rows": examples}
        if not of_rows:
            inputs, targets = contents
            arrays = {"inputs": inputs, "targets": target_rows.on_devices(targets)}
            weights = self.weights(examples, targets)
            if weights is not None:
                arrays["weights"] = mask * weights
        full = self._full(placement, mask.shape)
        if not mask.all():
            arrays["mask"] = mask
        placed = {**full, **self._put(placement, arrays)}
        if not of_rows:
            placed.setdefault("weights", placed["mask"])
        return Batch(**placed)

    def _read(self, indices: tuple[int, ...], step: int, count: int) -> Part:
        """Reads the examples of some steps, from where they are or from what was read ahead."""
        if not self._source.reads_ahead:
            return self._read_now(indices, step, count)
        ahead = self.ahead(indices)
        parts = [ahead.get(one) for one in range(step, step + count)]
        if len(parts) == 1:
            return parts[0]
        columns = zip(*parts, strict=True)
        return Part(*(np.concatenate(column, axis=self._steps_axis) for column in columns))

    def _read_ahead(self, indices: tuple[int, ...]) -> ReadAhead:
        most = _MAX_AHEAD_BYTES // self._batch_bytes(len(indices), self._example_bytes)
        depth = max(2, min(2 * _MAX_AT_ONCE, most))

        def read(step: int, count: int) -> list[Part]:
            found = self._read_now(indices, step, count)
            columns = (np.split(one, count, axis=self._steps_axis) for one in found)
            return [Part(*steps) for steps in zip(*columns, strict=True)]

        return ReadAhead(read, depth, self._num_steps)

    def _read_now(self, indices: tuple[int, ...], step: int, count: int) -> Part:
        examples, mask = self._numbers(indices, step, count)
        return Part(examples, mask, *self._source.read("train", examples))

    def _numbers(
        self, indices: tuple[int, ...], step: int, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first two of `Part`."""
        parts, end = [], step + count
        while step < end:
            epoch, first = divmod(step, self._steps_per_epoch)
            last = min(first + end - step, self._steps_per_epoch)
            parts.append([one[..., first:last, :] for one in self._epoch(epoch, indices)])
            step += last - first
        examples, mask = (np.concatenate(ones, axis=-2) for ones in zip(*parts, strict=True))
        return examples, mask

    def weights(
        self, examples: np.ndarray, targets: np.ndarray, of_classes: bool = True
    ) -> np.ndarray | None:
        """How much training examples count in the loss; None where all count the same.

        Args:
            examples: their numbers.
            targets: theirs.
            of_classes: whether class weights count.
        """
        weights = (
            None if self._source.train_weights is None else self._source.train_weights[examples]
        )
        if self._class_weights is not None and of_classes:
            of_class = self._class_weights[targets]
            weights = of_class if weights is None else weights * of_class
        return weights

    def _place_full(self, placement: Placement, shape: tuple[int, ...]) -> dict[str, Any]:
        """What all full batches have in common, so that it is not put on the devices every step."""
        positions = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
        return self._put(placement, {"mask": np.ones(shape, np.float32), "positions": positions})

    def _put(self, placement: Placement, arrays: dict[str, Any]) -> dict[str, Any]:
        if self._config.batching == "shared":
            return placement.place_shared_steps(arrays)
        return placement.place_separate_steps(arrays)


def check_data(
    config: ml_collections.FrozenConfigDict, dataset: Source, folds: Folds | None = None
) -> None:
    """Refuses augmentations that do not suit the data, and to stop by no split.

    Members that have folds stop by these.

    Raises:
        UserError: as said.
    """
    check_augmentation(config, dataset)
    if config.early_stopping_epochs and folds is None and "validation" not in dataset.sizes:
        raise UserError(
            f"config.early_stopping_epochs={config.early_stopping_epochs} needs a validation "
            "split: give one, set config.hold_out=True, or early_stopping_epochs=0"
        )
