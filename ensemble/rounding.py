"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import math

import numpy as np

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""Of the range of a column that rounding may change a value by, without a word."""
_BLOCK_VALUES = 1 << 22
"""Looked at together: data may be larger than the memory."""


def note_rounding(array: np.ndarray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column, or an image, apart.

    Args:
        array: finite, with at least one axis; of `[N, F]` the columns count by themselves.
        what: it is, for messages.
    """
    if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4 or array.dtype == np.float32:
        return
    axis = 0 if array.ndim == 2 else None
    low, high, error = np.inf, -np.inf, 0.0
    size = max(1, _BLOCK_VALUES // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), size):
        block = np.asarray(array[start : start + size], np.float64)
        low, high = np.minimum(low, block.min(axis)), np.maximum(high, block.max(axis))
        error = np.maximum(error, np.abs(block - block.astype(np.float32)).max(axis))
    is_lost = np.atleast_1d(error / _MAX_SHARE > high - low) & np.atleast_1d(high > low)
    if is_lost.any():
        k = int(is_lost.argmax())
        column = f" in column {k}" if array.ndim == 2 else ""
        low, high, error = (np.atleast_1d(one)[k] for one in (low, high, error))
        note(
            f"{what} holds numbers from {low:.17g} to {high:.17g}{column}, which float32 rounds by "
            f"up to {error:.3g}: subtract a constant first, such as the smallest."
        )
