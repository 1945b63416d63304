"""Predictions of members on the devices: forward passes only, batched, padded and masked."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.sharding.placement import Placement, pad_to_multiple
from ensemble.source import Inputs
from ensemble.tasks.classification import Classification

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""


def make_predict(task: Classification, placement: Placement) -> Callable[[Any, Inputs], np.ndarray]:
    """Returns `predict(variables, inputs) -> log_probs`, compiled once per batch shape.

    The returned function takes `variables` on the devices, [D, slots, ...], and raw `inputs`
    [N, ...] with N > 0, of which it reads one batch at a time, and returns log p(class | input,
    member) [M, N, C] float32.
    """

    @placement.pmap
    def predict_batch(variables: Any, inputs: Any) -> Any:
        return placement.map_slots(task.log_probs, in_axes=(0, None))(variables, inputs)

    def predict(variables: Any, inputs: Inputs) -> np.ndarray:
        num_examples = len(inputs)
        batch_size = min(MAX_BATCH_SIZE, 1 << max(num_examples - 1, 0).bit_length())
        batches = []
        for start in range(0, num_examples, batch_size):
            batch = pad_to_multiple(inputs[start : start + batch_size], batch_size)
            log_probs = predict_batch(variables, placement.place_shared(batch))
            batches.append(_join_slices(placement, log_probs))
        return np.concatenate(batches, axis=1)[:, :num_examples]

    return predict


def _join_slices(placement: Placement, log_probs: Any) -> np.ndarray:
    """[D, slots, B/slices, C] on the devices to [M, B, C] on the host."""
    whole = placement.fetch(log_probs)
    whole = whole.reshape(placement.num_groups, placement.slices, *whole.shape[1:])
    whole = whole.swapaxes(1, 2)  # [groups, slots, slices, B/slices, C]
    return whole.reshape(placement.num_places, -1, whole.shape[-1])[: placement.num_members]
