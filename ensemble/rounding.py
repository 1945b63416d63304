"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import math
from typing import NamedTuple

import numpy as np

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""The share of the range of a column that rounding may change a value by, without a word."""
_BLOCK_VALUES = 1 << 22
"""Looked at together: data may be larger than the memory."""


class _Rounding(NamedTuple):
    """What float32 takes from columns [F] of numbers; from all together if F is 1.

    Attributes:
        low: the least number.
        high: the largest.
        error: by how much float32 changes a number at most.
        is_lost: whether it rounds away what tells the numbers apart.
    """

    low: np.ndarray
    high: np.ndarray
    error: np.ndarray
    is_lost: np.ndarray


def _rounding(array: np.ndarray) -> _Rounding | None:
    """What float32 takes from finite numbers; None if it holds every number of their type."""
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
    return _Rounding(-low, high, error, (error / _MAX_SHARE > width) & (width > 0))


def note_rounding(array: np.ndarray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column, or an image, apart.

    Args:
        array: finite, with at least one axis; of `[N, F]` the columns count by themselves.
        what: it is, for messages.
    """
    found = _rounding(array)
    if found is not None and found.is_lost.any():
        k = int(found.is_lost.argmax())
        column = f" in column {k}" if array.ndim == 2 else ""
        note(
            f"{what} holds numbers from {found.low[k]:.17g} to {found.high[k]:.17g}{column}, which "
            f"float32 rounds by up to {found.error[k]:.3g}: subtract a constant first, such as the "
            "smallest."
        )


def offset(array: np.ndarray) -> np.ndarray | None:
    """Returns constants [F] without which float32 tells the values of each column [N, F] apart.

    Returns None if it does so anyway, and for arrays of another shape.
    """
    found = _rounding(array) if array.ndim == 2 else None
    if found is None or not found.is_lost.any():
        return None
    return np.where(found.is_lost, found.low, 0)
