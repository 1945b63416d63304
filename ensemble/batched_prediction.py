"""Predictions of members on the devices: forward passes only, batched, padded and masked."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.sharding.placement import Placement, pad_to_multiple
from ensemble.tasks.classification import Classification

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""


def make_predict(
    task: Classification, placement: Placement
) -> Callable[[Any, np.ndarray], np.ndarray]:
    """Returns `predict(variables, inputs) -> log_probs`, compiled once per batch shape.

    The returned function takes `variables` on the devices, [D, slots, ...], and raw `inputs`
    [N, ...] with N > 0 in host memory, and returns log p(class | input, member) [M, N, C] float32.
    """

    @placement.pmap
    def predict_batch(variables: Any, inputs: Any) -> Any:
        return placement.map_slots(task.log_probs, in_axes=(0, None))(variables, inputs)

    def predict(variables: Any, inputs: np.ndarray) -> np.ndarray:
        num_examples = len(inputs)
        batch_size = min(MAX_BATCH_SIZE, 1 << max(num_examples - 1, 0).bit_length())
        inputs = pad_to_multiple(inputs, batch_size)
        batches = [
            _join_slices(
                placement,
                predict_batch(variables, placement.place_shared(inputs[i : i + batch_size])),
            )
            for i in range(0, len(inputs), batch_size)
        ]
        return np.concatenate(batches, axis=1)[:, :num_examples]

    return predict


def _join_slices(placement: Placement, log_probs: Any) -> np.ndarray:
    """[D, slots, B/slices, C] on the devices to [M, B, C] on the host."""
    whole = placement.fetch(log_probs)
    whole = whole.reshape(placement.num_groups, placement.slices, *whole.shape[1:])
    whole = whole.swapaxes(1, 2)  # [groups, slots, slices, B/slices, C]
    return whole.reshape(placement.num_places, -1, whole.shape[-1])[: placement.num_members]
