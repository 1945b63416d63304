"""Whole sample weights repeat rows, and rows that repeat are learned in an order of their own.

decision 0071
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight

from ensemble.data.own_arrays import WEIGHTS
from ensemble.data.splitting import digest_examples
from ensemble.data.tables.columns import digest_rows

MOST_TIMES = 10
"""Rows after repetition for each row before, beyond which weights multiply losses instead: each
repetition takes memory and steps."""


def num_examples(data: Mapping[str, Any]) -> int:
    """Rows of what is learned."""
    return len(data.get("train_labels", data.get("train_targets")))


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
    if is_whole and weights.sum() <= MOST_TIMES * len(rows):
        rows = np.repeat(rows, weights.astype(np.int64))
        return {**data, **taken(data, rows)}
    return {**data, **taken(data, rows), WEIGHTS: weights}


def in_order(data: Mapping[str, Any]) -> dict[str, Any]:
    """Brings rows into an order that their content alone decides, if some of them are equal.

    Rows that all differ stay as they are, so that their fits are those of `ensemble.train`.

    Args:
        data: what is learned.
    """
    rows = digest_examples(np.stack([_digests(data[key]) for key in _of_rows(data)], axis=1))
    if len(np.unique(rows)) == len(rows):
        return dict(data)
    return {**data, **taken(data, np.argsort(rows, kind="stable"))}


def _digests(values: Any) -> NDArray[np.uint64]:
    """Digests [N] of the rows of an array or of columns."""
    if isinstance(values, Mapping):
        return digest_rows(values)
    return digest_examples(values.reshape(len(values), -1))
