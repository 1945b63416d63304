"""Whole sample weights repeat rows, and rows that repeat are learned in an order of their own.

decision 0071
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight

from ensemble.data.copies import digest_examples
from ensemble.data.own_arrays import WEIGHTS
from ensemble.data.tables.table_source import digest_rows
from ensemble.notes import note

MOST_TIMES = 10
"""Rows after repetition for each row before, beyond which weights multiply losses instead: each
repetition takes memory and steps."""


def num_examples(data: Mapping[str, Any]) -> int:
    """Rows of what is learned."""
    return len(next(data[key] for key in ("train_labels", "train_targets") if key in data))


def _of_rows(data: Mapping[str, Any]) -> list[str]:
    """The entries that have a row for each example."""
    return [key for key in data if key.startswith("train_") or key == WEIGHTS]


def taken(data: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Some rows of what is learned and its weights, inputs as an array or columns."""
    return {
        key: {name: column.rows(rows) for name, column in one.items()}
        if isinstance(one := data[key], Mapping)
        else one[rows]
        for key in _of_rows(data)
    }


def weighted(data: Mapping[str, Any], sample_weight: ArrayLike) -> dict[str, Any]:
    """Repeats each row as often as its weight says, or keeps the weights if they are not whole.

    Rows of weight 0 do not count, and are left out.

    Args:
        data: what is learned.
        sample_weight: [N], not negative.
    """
    like = np.empty(num_examples(data))
    weights = _check_sample_weight(sample_weight, like, ensure_non_negative=True)
    rows = np.flatnonzero(weights > 0)
    weights = weights[rows]
    is_whole = (weights == np.floor(weights)).all()
    total = weights.sum()
    most = MOST_TIMES * len(rows)
    if is_whole and total <= most:
        rows = np.repeat(rows, weights.astype(np.int64))
        return {**data, **taken(data, rows)}
    if is_whole:
        note(
            f"sample_weight adds up to {total:.0f}, more than {MOST_TIMES} times its "
            f"{len(rows)} rows, so its whole numbers do not repeat rows: they multiply losses."
        )
    return {**data, **taken(data, rows), WEIGHTS: weights}


def in_order(data: Mapping[str, Any]) -> tuple[dict[str, Any], NDArray[np.uint64] | None]:
    """Brings rows into an order that their content alone decides, if some of them are equal.

    Rows that all differ stay as they are, so that their fits are those of `ensemble.train`.

    Args:
        data: what is learned.

    Returns:
        The data, and digests [N] of their inputs; None where all rows differ.
    """
    inputs = _digests(data["train_inputs"])
    if len(np.unique(inputs)) == len(inputs):
        return dict(data), None
    others = [key for key in _of_rows(data) if key != "train_inputs"]
    each = np.stack([inputs, *(_digests(data[key]) for key in others)], axis=1)
    rows = digest_examples(each)
    if len(np.unique(rows)) == len(rows):
        return dict(data), None
    order = np.argsort(rows, kind="stable")
    return {**data, **taken(data, order)}, inputs[order]


def _digests(values: Any) -> NDArray[np.uint64]:
    """Digests [N] of the rows of an array or of columns."""
    if isinstance(values, Mapping):
        return digest_rows(values)
    return digest_examples(values.reshape(len(values), -1))
