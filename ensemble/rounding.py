"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import numpy as np

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""The share of the range of a column that rounding may change a value by, without a word."""
_BLOCK_ROWS = 1 << 16
"""Looked at together: data may be larger than the memory."""


def _rounded(array: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Columns [F] of finite numbers [N, F] that float32 cannot tell apart.

    Returns:
        The least and the largest number of each, by how much float32 changes a number at most, and
        whether that takes away what tells the numbers apart; None if it does so nowhere.
    """
    if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4 or array.dtype == np.float32:
        return None
    low, high = (one(array, axis=0).astype(np.float64) for one in (np.min, np.max))
    with np.errstate(over="ignore"):  # What float32 cannot hold is refused by others.
        each = [
            np.abs(block - block.astype(np.float32)).max(axis=0)
            for block in np.array_split(array, -(-len(array) // _BLOCK_ROWS))
        ]
    error = np.max(each, axis=0)
    is_lost = (error / _MAX_SHARE > high - low) & (high > low)
    return (low, high, error, is_lost) if is_lost.any() else None


def note_rounding(array: np.ndarray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column apart.

    Args:
        array: finite, [N] or [N, F]; of others nothing is noted.
        what: it is, for messages.
    """
    found = _rounded(array.reshape(len(array), -1)) if array.ndim <= 2 else None
    if found is not None:
        k = int(found[-1].argmax())
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
    return None if found is None else np.where(found[-1], found[0], 0)
