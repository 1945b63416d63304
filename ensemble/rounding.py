"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import numpy as np
from numpy.typing import NDArray

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""The share of the range of a column that rounding may change a value by, without a word."""
_BLOCK_ROWS = 1 << 16
"""Looked at together: data may be larger than the memory."""


def _lost(array: NDArray):
    """Least, largest number, error of float32 and whether it is too large, of columns [F].

    None if the array is no [N] or [N, F], or float32 keeps apart what differs.
    """
    is_exact = array.dtype.kind not in "iuf" or array.dtype.itemsize < 4
    if array.ndim > 2 or is_exact or array.dtype == np.float32:
        return None
    columns = array.reshape(len(array), -1)
    lows, highs = (one(columns, axis=0).astype(np.float64) for one in (np.min, np.max))
    blocks = np.array_split(columns, -(-len(columns) // _BLOCK_ROWS))
    with np.errstate(over="ignore"):  # What float32 cannot hold is refused by others.
        errors = np.max([abs(one - one.astype(np.float32)).max(axis=0) for one in blocks], axis=0)
    is_lost = (errors / _MAX_SHARE > highs - lows) & (highs > lows)
    return (lows, highs, errors, is_lost) if is_lost.any() else None


def note_rounding(array: NDArray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column apart.

    Args:
        array: finite, [N] or [N, F]; of others nothing is noted.
        what: it is, for messages.
    """
    if found := _lost(array):
        k = int(found[3].argmax())
        low, high, error, _ = (one[k] for one in found)
        column = f" in column {k}" if array.ndim == 2 else ""
        note(
            f"{what} holds numbers from {low:.17g} to {high:.17g}{column}, which float32 rounds by "
            f"up to {error:.3g}: subtract a constant first, such as the smallest."
        )


def offset(array: NDArray) -> NDArray | float:
    """What to subtract [F] from inputs, so that float32 can tell them apart; 0 if it can."""
    found = _lost(array)
    return 0.0 if found is None else np.where(found[3], found[0], 0)
