"""What members say of a split on the devices: forward passes only, batched, padded and masked."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import Inputs
from ensemble.fitted import Predict, in_passes, predict_plainly
from ensemble.likelihoods.predictive import Arrays
from ensemble.runtime.devices import Devices
from ensemble.sharding.mesh import traced_for
from ensemble.sharding.transfer import pad

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""
_DRAWS_BYTES = 1 << 28
"""The size of predictions of single estimators before they are pooled."""
_MAX_BATCHES = 16  # Of inputs in memory meanwhile.


class Predictions:
    """The program of what sets of parameters say of inputs.

    Args:
        task: What is learned.
        devices: Placement of the members.
        predict: What one pass of one set says.
        num_passes: Passes of a set.

    Attributes:
        program: `(sets [num_places, K, ...], inputs [B, ...]) -> arrays [num_places, B, K, ...]`.
        num_each: Estimators of a set: its passes, or those that it consists of.
    """

    def __init__(
        self,
        task: Any,
        devices: Devices,
        predict: Predict = predict_plainly,
        num_passes: int = 1,
    ):
        self._devices = devices
        of_set = in_passes(predict, task, num_passes)
        self.num_each = num_passes = max(num_passes, task.num_estimators)  # One of both is 1.

        def of_member(sets: Any, inputs: jax.Array) -> tuple[tuple[()], Any]:
            """[B, K, ...] by name, of K sets and passes."""
            if len(jax.tree.leaves(sets)[0]) == 1:  # No loop, in which XLA:CPU convolves slowly.
                found = pytrees.at(of_set(pytrees.at(sets, 0), inputs), None)
            else:
                found = jax.lax.map(lambda one: of_set(one, inputs), sets)
            found = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), found)
            if num_passes > 1:
                found = jax.tree.map(
                    lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]), found
                )
            return (), found

        spread = devices.over_examples(of_member, unrolls=True)

        def program(sets: Any, inputs: jax.Array) -> Any:
            with traced_for(devices.mesh):
                return devices.map_members(spread, (0, None))(sets, inputs)[1]

        self.program = jax.jit(program)

    def __call__(self, sets: Any, inputs: Inputs) -> Arrays:
        """Predicts.

        Args:
            sets: [num_places, K, ...] on the devices.
            inputs: Raw inputs [N, ...], N > 0, of which one batch is read at a time.

        Returns:
            dict[str, np.ndarray] [M * K, N, ...] by name, of all sets and passes, member by member.
        """
        num_examples = len(inputs)
        size = min(MAX_BATCH_SIZE, 1 << max(num_examples - 1, 0).bit_length())
        kept: Arrays = {}
        before: tuple[slice, Any] | None = None

        def keep(here: slice, predicted: Any) -> None:
            for name, one in self._devices.fetch_members(predicted).items():
                _fill(kept, name, here, num_examples, pytrees.merged(np.moveaxis(one, 2, 1)))

        for start in range(0, num_examples, size):
            here = slice(start, min(start + size, num_examples))
            batch = np.asarray(inputs[start : start + size])
            # While the devices predict the one before.
            placed = self._devices.put_examples(pad(batch, size))
            if before is not None:
                keep(*before)
            # Only now: CPUs would run two programs at once, in twice the memory.
            before = here, self.program(sets, placed)
        assert before is not None
        keep(*before)
        return kept


def _fill(kept: Arrays, name: str, here: slice, num_examples: int, part: np.ndarray) -> None:
    """Puts predictions [E, n, ...] of some examples to those of all; more than these may pad."""
    if name not in kept:
        kept[name] = np.empty((len(part), num_examples, *part.shape[2:]), part.dtype)
    kept[name][:, here] = part[:, : here.stop - here.start]


def predict_pooled(
    predict: Callable[[Inputs], Arrays],
    inputs: Inputs,
    shape: tuple[int, int],
    pooled: Callable[[Arrays], Arrays],
) -> Arrays:
    """Predicts with estimators of members, of so many examples at once as memory holds.

    Args:
        predict: what all estimators say of inputs [N, ...]: arrays [M * K, N, ...].
        inputs: [N, ...].
        shape: (M, K), members and estimators of each.
        pooled: from arrays [M, K, N, ...] of all estimators to those of fewer.

    Returns:
        Arrays [E, N, ...] float32 of the estimators that are left, member by member.
    """
    start = 0
    size = MAX_BATCH_SIZE
    num_examples = len(inputs)
    kept: Arrays = {}
    while start < num_examples:
        here = slice(start, min(start + size, num_examples))
        arrays = predict(inputs[here])
        of_batch = sum(one[:, :1].nbytes for one in arrays.values()) * MAX_BATCH_SIZE
        number = min(max(1, _DRAWS_BYTES // of_batch), _MAX_BATCHES)
        start = here.stop
        size = MAX_BATCH_SIZE * number
        single = {name: one.reshape(*shape, *one.shape[1:]) for name, one in arrays.items()}
        for name, one in pooled(single).items():
            part = pytrees.merged(one).astype(np.float32, copy=False)
            _fill(kept, name, here, num_examples, part)
    return kept
