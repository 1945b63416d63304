"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import math

import numpy as np

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""The share of the range of a column that rounding may change a value by, without a word."""
_BLOCK_VALUES = 1 << 22
"""Looked at together: data may be larger than the memory."""


def _rounded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Columns [F] of finite numbers that float32 cannot tell apart; of all together if F is 1.

    Returns:
        The least and the largest number of each, by how much float32 changes a number at most, and
        whether that takes away what tells the numbers apart; None if it does so nowhere.
    """
    if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4 or array.dtype == np.float32:
        return None
    columns = array if array.ndim == 2 else array.reshape(len(array), -1)
    axis = 0 if array.ndim == 2 else None
    each = []
    size = max(1, _BLOCK_VALUES // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), size):
        block = np.asarray(columns[start : start + size], np.float64)
        with np.errstate(over="ignore"):  # What float32 cannot hold is refused by others.
            error = np.abs(block - block.astype(np.float32))
        each.append([one.max(axis) for one in (-block, block, error)])
    low, high, error = map(np.atleast_1d, np.max(each, axis=0))
    width = high + low
    is_lost = (error / _MAX_SHARE > width) & (width > 0)
    return (-low, high, error, is_lost) if is_lost.any() else None


def note_rounding(array: np.ndarray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column, or an image, apart.

    Args:
        array: finite, with at least one axis; of `[N, F]` the columns count by themselves.
        what: it is, for messages.
    """
    if found := _rounded(array):
        k = int(found[3].argmax())
        low, high, error, _ = (one[k] for one in found)
        column = f" in column {k}" if array.ndim == 2 else ""
        note(
            f"{what} holds numbers from {low:.17g} to {high:.17g}{column}, which float32 rounds by "
            f"up to {error:.3g}: subtract a constant first, such as the smallest."
        )


def offset(array: np.ndarray) -> np.ndarray | None:
    """Returns constants [F] without which float32 tells the values of each column [N, F] apart.

    Returns None if it does so anyway, and for arrays of another shape.
    """
    found = _rounded(array) if array.ndim == 2 else None
    return None if found is None else np.where(found[3], found[0], 0)
