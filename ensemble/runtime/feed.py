"""What members see at a step, as the host hands it over and as a program reads it.

A feed has a part that is `fixed` on the devices for the whole run, and what it sends of each step:
`send(first, count, size)` puts on the devices what `count` steps from `first` on need, with a
leading axis of `size`, the steps of a program. In the program, `read(fixed, sent, step, key)` makes
of these the batch of a step. `per_member` says whether what is sent has an axis of members.

Data that every step sees whole are all fixed, batches of the host are all sent. Of examples in an
accelerator's memory only the numbers are sent.
"""

import concurrent.futures
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ensemble import pytrees
from ensemble.data.source import Source
from ensemble.pytrees import ByName, Function
from ensemble.runtime.algorithm import Stream
from ensemble.runtime.devices import Devices

MAX_STEPS = 64
"""Steps of one program, at most."""
_MAX_SENT_BYTES = 1 << 22
"""Bytes of several batches that are sent to one program."""

Order = Function
"""`(epoch, member or None) -> (numbers of examples, mask), [steps, B]`."""


class Fixed:
    """The same arrays at every step; None for densities without data."""

    per_member = False

    def __init__(self, fixed: Any = None):
        self.fixed = fixed

    def send(self, first: int, count: int, size: int) -> Any:
        """Nothing."""
        return None

    def read(self, fixed: Any, sent: Any, step: Array, key: Any = None) -> Any:
        """The arrays."""
        return fixed


class Batch(NamedTuple):
    """A batch, as members see it.

    Attributes:
        inputs: [B, ...], as the network sees them.
        targets: [B].
        mask: [B] float32, one for examples and zero for padding.
        weights: [B] float32, the mask times how much an example counts in the loss.
    """

    inputs: Array
    targets: Any
    mask: Array
    weights: Array


@dataclass(eq=False)
class Batches:
    """Batches of the training split, in the order of (seed, epoch) or (seed, epoch, member).

    Args:
        devices: Placement of the members.
        numbers: Numbers of the members.
        source: Data.
        order: Order of the examples of an epoch.
        weights: How much examples count, [N] float32; None: all the same.
        prepare: Makes of raw inputs [B, ...] what networks see.
        augment: Augmentation, `(keys [B], raw inputs [B, ...]) -> raw inputs`.
        seed: Seed of the run, of augmentation.
        num_steps: Steps of the run; no batch behind them is read ahead.
        per_member: Whether each member has an order of its own.
        on_devices: Whether all examples are on the devices, and only their numbers are sent.
    """

    devices: Devices
    numbers: Sequence[int]
    source: Source
    order: Order
    weights: np.ndarray | None
    prepare: Function
    augment: Function | None
    seed: int
    num_steps: int
    per_member: bool = False
    on_devices: bool = False

    def __post_init__(self) -> None:
        self._of_epoch = lru_cache(2)(self._numbers_of_epoch)
        source = self.source
        self._ahead: Any = {}
        self._pool: Any = None
        if source.reads_ahead:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, "read_ahead")
        examples = self._of_epoch(0)[0]
        self._steps_per_epoch = len(examples)
        self.fixed: Any = None
        of_example = 4
        if self.on_devices:  # Inputs flat, for axes may be filled up.
            inputs, targets = source.read("train", slice(None))
            rows = inputs.reshape(len(inputs), -1), targets, self.weights
            self.fixed = self.devices.put_everywhere(rows)
        else:
            of_example = math.prod(source.input_shape) * source.input_dtype.itemsize
        most = _MAX_SENT_BYTES // (examples[0].size * of_example)
        self.steps_per_program = max(1, min(MAX_STEPS, most))

    def _numbers_of_epoch(self, epoch: int):
        """Numbers of examples and masks of an epoch, [steps, B] or [steps, M, B]."""
        if not self.per_member:
            return self.order(epoch, None)
        each = [self.order(epoch, k) for k in self.numbers]
        return [np.stack(ones, axis=1) for ones in zip(*each, strict=True)]

    def _read(self, first: int, count: int) -> ByName:
        """What is sent of some steps."""
        places = (divmod(step, self._steps_per_epoch) for step in range(first, first + count))
        rows = [[one[place] for one in self._of_epoch(epoch)] for epoch, place in places]
        examples, mask = map(np.stack, zip(*rows, strict=True))
        if self.on_devices:
            return {"rows": examples.astype(np.int32), "mask": mask}
        inputs, targets = self.source.read("train", examples)
        found = {"inputs": inputs, "targets": targets, "mask": mask}
        if self.weights is not None:
            found["weights"] = mask * self.weights[examples]
        return found

    def read_ahead(self, first: int, count: int) -> ByName:
        """Returns what `_read` does, and has twice as many steps after them read in a thread.

        To begin to read a shard costs as much as some records of it.
        """
        known = self._ahead
        self._ahead = {}
        for begin in range(first, min(first + 3 * count, self.num_steps), count):
            part = begin, min(count, self.num_steps - begin)
            self._ahead[part] = known.pop(part, None) or self._pool.submit(self._read, *part)
        for other in known.values():  # A run goes on elsewhere, or has a shorter program.
            other.cancel()
        found: ByName = self._ahead[first, count].result()
        return found

    def send(self, first: int, count: int, size: int) -> Any:
        """Puts the batches of some steps on the devices; the last one fills up the program."""
        found = self.read_ahead(first, count) if self._pool else self._read(first, count)
        if count < size:
            fill = np.minimum(np.arange(size), count - 1)
            found = {name: leaf[fill] for name, leaf in found.items()}
        return self.devices.put_examples(found, 1 + self.per_member, self.per_member)

    def read(self, fixed: Any, sent: Any, step: Array, key: Any = None) -> Batch:
        """The batch of a step, augmented and prepared.

        Args:
            fixed: All examples, if they are on the devices.
            sent: Of the step.
            step: Its number.
            key: Key of the member if batches are its own, else None.
        """
        mask = sent["mask"]
        weights = sent.get("weights", mask)
        if fixed is None:
            inputs, targets = sent["inputs"], sent["targets"]
        else:
            rows = sent["rows"]
            inputs, targets, counts = jax.tree.map(
                lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), fixed
            )
            inputs = inputs.reshape(*rows.shape, *self.source.input_shape)
            weights = mask if counts is None else mask * counts
        if self.augment is not None:
            # Member k's key is the seed's folded with k; no member has this number.
            whose = random.fold_in(random.key(self.seed), 2**32 - 1)
            if key is not None:
                whose = random.fold_in(key, Stream.AUGMENT)
            whose = random.fold_in(whose, step)
            inputs = self.augment(pytrees.keys_of(whose, jnp.arange(len(inputs))), inputs)
        return Batch(self.prepare(inputs), targets, mask, weights)
