"""Shifted tables: five kinds, five severities each, the same values in every process.

| shift | 1 | 2 | 3 | 4 | 5 | unit |
|---|---|---|---|---|---|---|
| missing | 0.1 | 0.2 | 0.4 | 0.6 | 0.8 | share of the values that become their column's mean |
| noisy | 0.1 | 0.2 | 0.4 | 0.8 | 1.6 | standard deviation of added noise |
| scaled | 1.1 | 1.25 | 1.5 | 2 | 3 | factor on the distance from the column's mean |
| permuted | 0.2 | 0.4 | 0.6 | 0.8 | 1 | share of the columns that are permuted among the rows |
| beyond | 0.1 | 0.25 | 0.5 | 1 | 2 | training ranges by which a column of each row lies beyond |

Means, standard deviations and ranges are those of the training rows, so that the amounts have no
units. A mean in the place of a missing value is what a table often holds where a value is not
known. Permuted columns keep their values and lose what these say of the target. The inputs that one
column of a table with names becomes, as those of a category, are missing or permuted together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ensemble.evaluation.shift import Shift
from ensemble.source import Source, blocks

TABLE_SHIFTS: Mapping[str, Shift] = MappingProxyType(
    {
        "missing": Shift(
            (0.1, 0.2, 0.4, 0.6, 0.8), "share of the values that become their column's mean"
        ),
        "noisy": Shift(
            (0.1, 0.2, 0.4, 0.8, 1.6), "standard deviation of the noise, in the column's"
        ),
        "scaled": Shift((1.1, 1.25, 1.5, 2, 3), "factor on the distance from the column's mean"),
        "permuted": Shift(
            (0.2, 0.4, 0.6, 0.8, 1), "share of the columns that are permuted among the rows"
        ),
        "beyond": Shift(
            (0.1, 0.25, 0.5, 1, 2), "training ranges by which a column of each row lies beyond"
        ),
    }
)


class Columns(NamedTuple):
    """What the training rows say of each input, float64 [F].

    `group` is the number of the table's column that it is of.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    group: np.ndarray


def is_table(source: Source) -> bool:
    """Whether an example is a row of floating-point columns."""
    return len(source.input_shape) == 1 and source.input_dtype.kind == "f"


def columns_of(source: Source) -> Columns:
    """Reads the training rows of a table."""
    count, total, squares = 0, 0.0, 0.0
    low, high = np.inf, -np.inf
    first = source.read("train", slice(0, 1)).inputs[0].astype(np.float64)
    for block in blocks(source, "train"):
        values = block.inputs.astype(np.float64) - first  # Near zero, for the sum of the squares.
        count, total = count + len(values), total + values.sum(axis=0)
        squares = squares + (values**2).sum(axis=0)
        low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
    mean = np.asarray(total) / count
    deviation = np.sqrt(np.maximum(np.asarray(squares) / count - mean**2, 0))
    table = source.table
    group = np.arange(len(first)) if table is None else [one.column for one in table.features]
    return Columns(first + mean, deviation, first + low, first + high, np.array(group))


def shift_table(
    inputs: np.ndarray, name: str, severity: int, columns: Columns, seed: int = 0
) -> np.ndarray:
    """Shifts rows, as a pure function of the arguments.

    Draws come from a Philox generator seeded with (seed, name), the same at every severity: what is
    missing at one is missing at the next, and a permuted column stays so.

    Args:
        inputs: [N, F] float32.
        name: one of `TABLE_SHIFTS`.
        severity: 1 to 5.
        columns: of the training rows.
        seed: of the draws.

    Returns:
        [N, F] float32.
    """
    amount = TABLE_SHIFTS[name].amounts[severity - 1]
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *name.encode()])))
    rows = inputs.astype(np.float64)
    num_rows, num_columns = len(rows), int(columns.group.max()) + 1
    if name == "missing":
        is_missing = rng.random((num_rows, num_columns)) < amount
        shifted = np.where(is_missing[:, columns.group], columns.mean, rows)
    elif name == "noisy":
        shifted = rows + amount * columns.deviation * rng.standard_normal(rows.shape)
    elif name == "scaled":
        shifted = columns.mean + amount * (rows - columns.mean)
    elif name == "permuted":
        shifted = rows.copy()
        for column in rng.permutation(num_columns)[: int(np.ceil(amount * num_columns - 1e-9))]:
            # Its own generator, so that a column is permuted alike at every severity.
            order = np.random.default_rng([seed, column]).permutation(num_rows)
            shifted[:, columns.group == column] = rows[order][:, columns.group == column]
    else:
        shifted = rows.copy()
        moving = np.flatnonzero(columns.high > columns.low)
        column = rng.choice(moving, num_rows) if len(moving) else np.zeros(num_rows, int)
        span = (columns.high - columns.low)[column]
        ends = np.where(
            rng.integers(2, size=num_rows) == 1,
            columns.high[column] + amount * span,
            columns.low[column] - amount * span,
        )
        shifted[np.arange(num_rows), column] = ends
    return shifted.astype(inputs.dtype)


def box(
    columns: Columns, num_rows: int, margin: float, dtype: np.dtype, seed: int = 0
) -> np.ndarray:
    """Rows [N, F] whose columns are drawn evenly and independently of each other.

    Args:
        columns: of the training rows.
        num_rows: N.
        margin: 0 for the training range; more draws from so many ranges beyond either end, and
            never from within.
        dtype: of the rows.
        seed: of the draws.
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, int(margin > 0), 4])))
    share = rng.random((num_rows, len(columns.low)))
    if margin:
        above = rng.integers(2, size=share.shape) == 1
        share = np.where(above, 1 + margin * share, -margin * share)
    return (columns.low + share * (columns.high - columns.low)).astype(dtype)
