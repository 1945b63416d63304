"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import math
from typing import Any

import numpy as np

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""The share of the range of a column that rounding may change a value by, without a word."""
_BLOCK_VALUES = 1 << 22
"""Looked at together: data may be larger than the memory."""


class Rounding:
    """What float32 takes from numbers that are seen in blocks.

    Attributes:
        axis: None where all numbers count together; 0 where each column counts by itself.
        low: the least number, or that of each column.
        high: the largest.
        error: by how much float32 changes a number at most.
    """

    def __init__(self, axis: int | None = None):
        self.axis = axis
        self.low: Any = np.inf
        self.high: Any = -np.inf
        self.error: Any = 0.0

    def add(self, block: np.ndarray) -> None:
        """Looks at finite numbers, of which there is at least one."""
        block = np.asarray(block, np.float64)
        with np.errstate(over="ignore"):  # What float32 cannot hold is refused by others.
            error = np.abs(block - block.astype(np.float32)).max(self.axis)
        self.low = np.minimum(self.low, block.min(self.axis))
        self.high = np.maximum(self.high, block.max(self.axis))
        self.error = np.maximum(self.error, error)

    @property
    def is_lost(self) -> np.ndarray:
        """Whether float32 rounds away what tells the numbers apart, of each column."""
        width = self.high - self.low
        return np.atleast_1d(self.error / _MAX_SHARE > width) & np.atleast_1d(width > 0)

    def note(self, what: str) -> None:
        """Notes it if float32 rounds away what tells the numbers apart."""
        if self.is_lost.any():
            k = int(self.is_lost.argmax())
            column = "" if self.axis is None else f" in column {k}"
            low, high, error = (np.atleast_1d(one)[k] for one in (self.low, self.high, self.error))
            note(
                f"{what} holds numbers from {low:.17g} to {high:.17g}{column}, which float32 "
                f"rounds by up to {error:.3g}: subtract a constant first, such as the smallest."
            )


def is_rounded(dtype: np.dtype) -> bool:
    """Whether float32 cannot hold every number of a type."""
    return dtype.kind in "iuf" and dtype.itemsize >= 4 and dtype != np.float32


def note_rounding(array: np.ndarray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column, or an image, apart.

    Args:
        array: finite, with at least one axis; of `[N, F]` the columns count by themselves.
        what: it is, for messages.
    """
    if is_rounded(array.dtype):
        _rounding(array).note(what)


def offset(array: np.ndarray) -> np.ndarray | None:
    """Returns constants [F] without which float32 tells the values of each column [N, F] apart.

    Returns None if it does so anyway, and for arrays of another shape.
    """
    if array.ndim != 2 or not is_rounded(array.dtype):
        return None
    found = _rounding(array)
    return np.where(found.is_lost, found.low, 0) if found.is_lost.any() else None


def _rounding(array: np.ndarray) -> Rounding:
    found = Rounding(0 if array.ndim == 2 else None)
    size = max(1, _BLOCK_VALUES // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), size):
        found.add(array[start : start + size])
    return found
