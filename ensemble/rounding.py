"""Large numbers that differ by little: computations are of float32, which has 24 bits."""

import numpy as np

from ensemble.notes import note

_MAX_SHARE = 1e-3
"""The share of the range of a column that rounding may change a value by, without a word."""
_BLOCK_ROWS = 1 << 16
"""Looked at together: data may be larger than the memory."""


def _rounded(columns: np.ndarray) -> np.ndarray:
    """Columns [N, F] of finite numbers that float32 cannot tell apart.

    Returns:
        [4, F]: the least and the largest number of each, by how much float32 changes a number at
        most, and whether that takes away what tells the numbers apart.
    """
    each = []
    for start in range(0, len(columns), _BLOCK_ROWS):
        block = np.asarray(columns[start : start + _BLOCK_ROWS], np.float64)
        with np.errstate(over="ignore"):  # What float32 cannot hold is refused by others.
            error = np.abs(block - block.astype(np.float32))
        each.append([one.max(axis=0) for one in (-block, block, error)])
    low, high, error = np.max(each, axis=0) * np.array([[-1], [1], [1]])
    return np.stack([low, high, error, (error > _MAX_SHARE * (high - low)) & (high > low)])


def _may_round(array: np.ndarray) -> bool:
    is_large = array.dtype.kind in "iuf" and array.dtype.itemsize >= 4
    return is_large and array.dtype != np.float32 and array.ndim <= 2


def note_rounding(array: np.ndarray, what: str) -> None:
    """Notes it if float32 rounds away what tells the values of a column apart.

    Args:
        array: finite, [N] or [N, F]; of others nothing is noted.
        what: it is, for messages.
    """
    if not _may_round(array):
        return
    found = _rounded(array.reshape(len(array), -1))
    k = int(found[3].argmax())
    low, high, error, is_lost = found[:, k]
    if is_lost:
        column = f" in column {k}" if array.ndim == 2 else ""
        note(
            f"{what} holds numbers from {low:.17g} to {high:.17g}{column}, which float32 rounds by "
            f"up to {error:.3g}: subtract a constant first, such as the smallest."
        )


def offset(array: np.ndarray) -> np.ndarray | None:
    """Returns constants [F] without which float32 tells the values of each column [N, F] apart.

    Returns None if it does so anyway, and for arrays of another shape.
    """
    if array.ndim != 2 or not _may_round(array):
        return None
    low, _, _, is_lost = _rounded(array)
    return np.where(is_lost, low, 0) if is_lost.any() else None
