"""What members say of a split on the devices: forward passes only, batched, padded and masked."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import Inputs
from ensemble.fitted import Predict, all_estimators, predict_plainly
from ensemble.likelihoods.predictive import Arrays
from ensemble.runtime.devices import Devices
from ensemble.sharding.mesh import traced_for
from ensemble.sharding.transfer import pad

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""


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
        self.num_each = max(num_passes, task.num_estimators)  # One of both is 1.

        def of_member(sets: Any, inputs: jax.Array) -> tuple[tuple[()], Any]:
            """[B, E, ...] by name, of all estimators."""
            found = all_estimators(predict, task, num_passes, sets, inputs)
            return (), jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), found)

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
        parts: list[Arrays] = []
        predicted: Any = None

        def keep() -> None:
            fetched = self._devices.fetch_members(predicted)
            parts.append({k: pytrees.merged(np.moveaxis(v, 2, 1)) for k, v in fetched.items()})

        for start in range(0, num_examples, size):
            batch = np.asarray(inputs[start : start + size])
            # While the devices predict the one before.
            placed = self._devices.put_examples(pad(batch, size))
            if start:
                keep()
            # Only now: CPUs would run two programs at once, in twice the memory.
            predicted = self.program(sets, placed)
        keep()
        return joined(parts, num_examples)


def joined(parts: Sequence[Arrays], num_examples: int) -> Arrays:
    """Joins predictions [E, n, ...] of batches to those of all examples; what pads is left out."""
    return {
        name: np.concatenate([one[name] for one in parts], axis=1)[:, :num_examples]
        for name in parts[0]
    }
