"""Predictions of members on the devices: forward passes only, batched, padded and masked."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ensemble.sharding import transfer
from ensemble.sharding.mesh import spec
from ensemble.sharding.placement import EXAMPLES, MEMBERS, Placement
from ensemble.source import Inputs

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""


PredictFn = Callable[[Any, jax.Array], dict[str, jax.Array]]
"""From the variables of one member and raw inputs [B, ...] to its prediction [B, ...]."""


def make_predict(
    predict_fn: PredictFn, placement: Placement
) -> Callable[[Any, Inputs], dict[str, np.ndarray]]:
    """Returns `predict(variables, inputs) -> predictions`, compiled once per batch shape.

    Args:
        predict_fn: `Predictive.predict` of a task.
        placement: of the members.

    The returned function takes `variables` on the devices, [num_places, ...], and raw `inputs`
    [N, ...] with N > 0, of which it reads one batch at a time, and returns what the likelihood
    predicts with each member, named arrays [M, N, ...] float32.
    """
    predict_batch = placement.map_devices(
        placement.map_slots(predict_fn, in_axes=(0, None)),
        (MEMBERS, EXAMPLES),
        spec("member", "example"),
    )

    def predict(variables: Any, inputs: Inputs) -> dict[str, np.ndarray]:
        num_examples = len(inputs)
        batch_size = min(MAX_BATCH_SIZE, 1 << max(num_examples - 1, 0).bit_length())
        batches = []
        for start in range(0, num_examples, batch_size):
            batch = transfer.pad(np.asarray(inputs[start : start + batch_size]), batch_size)
            predicted = predict_batch(variables, placement.place_shared(batch))
            found = placement.gather_members(predicted)
            # The slices may have padded the batch.
            batches.append({k: transfer.strip(one, batch_size, axis=1) for k, one in found.items()})
        return {
            name: np.concatenate([batch[name] for batch in batches], axis=1)[:, :num_examples]
            for name in batches[0]
        }

    return predict
