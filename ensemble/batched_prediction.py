"""Predictions of members on the devices: forward passes only, batched, padded and masked."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ensemble.sharding import transfer
from ensemble.sharding.mesh import spec
from ensemble.sharding.placement import EXAMPLES, MEMBERS, Placement
from ensemble.source import Inputs

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""


Keep = Callable[[str, tuple[int, ...], np.dtype], np.ndarray]
"""A function that says where predictions are kept: it makes an array of a name, a shape and a type,
perhaps on disk."""
PredictFn = Callable[[Any, jax.Array], dict[str, jax.Array]]
"""From one set and raw inputs [B, ...] to its prediction [B, ...], or [B, K, ...] of K passes."""
_DRAWS_BYTES = 1 << 28
"""The size of predictions of single estimators before they are pooled."""


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Keeps predictions in memory."""
    return np.empty(shape, dtype)


def make_predict_batch(predict_fn: PredictFn, placement: Placement) -> Callable[..., Any]:
    """Returns the program `(sets, inputs [B, ...]) -> named arrays [num_places, B, ...]`."""
    return placement.map_devices(
        placement.map_slots(predict_fn, in_axes=(0, None)),
        (MEMBERS, EXAMPLES),
        spec("member", "example"),
    )


def make_predict(
    predict_fn: PredictFn, placement: Placement, num_passes: int = 1
) -> Callable[..., dict[str, np.ndarray]]:
    """Returns `predict(sets, inputs, keep=in_memory)`, compiled once per batch shape.

    Args:
        predict_fn: what one set says, in all its passes.
        placement: of the sets.
        num_passes: K.

    The returned function takes `sets` on the devices, [num_places, ...], and raw `inputs`
    [N, ...] with N > 0, of which it reads one batch at a time, and the next one before it fetches
    what is predicted for the last. It returns what the likelihood predicts with each estimator, set
    by set, named arrays [S * K, N, ...] float32.
    """
    predict_batch = make_predict_batch(predict_fn, placement)

    def predict(sets: Any, inputs: Inputs, keep: Keep = in_memory) -> dict[str, np.ndarray]:
        num_examples = len(inputs)
        batch_size = min(MAX_BATCH_SIZE, 1 << max(num_examples - 1, 0).bit_length())
        kept: dict[str, np.ndarray] = {}

        def keep_batch(here: slice, predicted: dict[str, jax.Array]) -> None:
            for name, one in placement.gather_members(predicted).items():
                if num_passes > 1:  # [S, B, K, ...]
                    one = np.moveaxis(one, 2, 1)
                    one = one.reshape(-1, *one.shape[2:])
                if name not in kept:
                    kept[name] = keep(name, (len(one), num_examples, *one.shape[2:]), one.dtype)
                # The slices may have padded the batch.
                kept[name][:, here] = transfer.strip(one, here.stop - here.start, axis=1)

        before = None
        for start in range(0, num_examples, batch_size):
            here = slice(start, min(start + batch_size, num_examples))
            batch = transfer.pad(np.asarray(inputs[start : start + batch_size]), batch_size)
            placed = placement.place_shared(batch)  # While the devices predict the one before.
            if before is not None:
                keep_batch(*before)
            # Only now: CPUs would run two programs at once, in twice the memory.
            before = here, predict_batch(sets, placed)
        assert before is not None
        keep_batch(*before)
        return kept

    return predict


def predict_pooled(
    predict: Callable[[Inputs], dict[str, np.ndarray]],
    inputs: Inputs,
    shape: tuple[int, int],
    pooled: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    keep: Keep = in_memory,
) -> dict[str, np.ndarray]:
    """Predicts with estimators of members, of so many examples at once as memory holds.

    Args:
        predict: what all estimators say of inputs [N, ...]: arrays [M * K, N, ...].
        inputs: [N, ...].
        shape: (M, K), members and estimators of each.
        pooled: from arrays [M, K, N, ...] of all estimators to those of fewer.
        keep: where predictions are to be.

    Returns:
        Arrays [E, N, ...] float32 of the estimators that are left, member by member.
    """
    start, size, num_examples = 0, MAX_BATCH_SIZE, len(inputs)
    kept: dict[str, np.ndarray] = {}
    while start < num_examples:
        here = slice(start, min(start + size, num_examples))
        arrays = predict(_Part(inputs, here))
        of_batch = sum(one[:, :1].nbytes for one in arrays.values()) * MAX_BATCH_SIZE
        start, size = here.stop, MAX_BATCH_SIZE * max(1, _DRAWS_BYTES // of_batch)
        single = {name: one.reshape(*shape, *one.shape[1:]) for name, one in arrays.items()}
        for name, one in pooled(single).items():
            flat = one.reshape(-1, *one.shape[2:])
            if name not in kept:
                whole = (len(flat), num_examples, *flat.shape[2:])
                kept[name] = keep(name, whole, np.dtype(np.float32))
            kept[name][:, here] = flat
    return kept


@dataclasses.dataclass(frozen=True)
class _Part:
    """Consecutive inputs."""

    inputs: Inputs
    which: slice

    def __len__(self) -> int:
        return self.which.stop - self.which.start

    def __getitem__(self, where: slice, /) -> np.ndarray:
        start, stop, _ = where.indices(len(self))
        return self.inputs[self.which.start + start : self.which.start + stop]
