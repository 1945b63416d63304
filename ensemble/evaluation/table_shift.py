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
column of a table with names becomes, as those of a category, are missing or permuted together. What
is noisy, scaled or beyond are numbers of the table where they are known: no categories, dates or
flags of missing values. Means and deviations of numbers are of known values.
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
    """What the training rows say of each input [F].

    Attributes:
        mean: of the known values.
        deviation: of the same.
        low: the least value.
        high: the largest.
        group: the number of the table's column that it is of.
        is_number: whether it is a number that can move by itself.
        flag: the input that is 1 where its value is missing; -1 where there is none.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    group: np.ndarray
    is_number: np.ndarray
    flag: np.ndarray

    def known(self, inputs: np.ndarray) -> np.ndarray:
        """Whether the value of each input is not missing, bool [N, F]."""
        found = np.ones(inputs.shape, bool)
        flagged = np.flatnonzero(self.flag >= 0)
        found[:, flagged] = inputs[:, self.flag[flagged]] == 0
        return found


def is_table(source: Source) -> bool:
    """Whether an example is a row of floating-point columns."""
    return len(source.input_shape) == 1 and source.input_dtype.kind == "f"


def columns_of(source: Source) -> Columns:
    """Reads the training rows of a table."""
    empty = np.zeros(0)
    columns = Columns(empty, empty, empty, empty, *_meanings(source))
    count, total, squares = (np.zeros(()) for _ in range(3))
    low, high = np.inf, -np.inf
    first = source.read("train", slice(0, 1)).inputs[0].astype(np.float64)
    for block in blocks(source, "train"):
        values = block.inputs.astype(np.float64) - first  # Near zero, for the sum of the squares.
        known = columns.known(block.inputs)
        count, total = count + known.sum(axis=0), total + np.sum(values * known, axis=0)
        squares = squares + np.sum(values**2 * known, axis=0)
        low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
    mean = np.asarray(total) / count
    deviation = np.sqrt(np.maximum(np.asarray(squares) / count - mean**2, 0))
    return columns._replace(
        mean=first + mean, deviation=deviation, low=first + low, high=first + high
    )


def _meanings(source: Source) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`group`, `is_number` and `flag` of `Columns`; without names every input is a number."""
    if source.table is None:
        number = source.input_shape[0]
        return np.arange(number), np.ones(number, bool), np.full(number, -1)
    features = source.table.features
    flags = {one.column: i for i, one in enumerate(features) if one.is_flag}
    return (
        np.array([one.column for one in features]),
        np.array([one.is_number for one in features]),
        np.array([flags.get(one.column, -1) if one.is_number else -1 for one in features]),
    )


def shifts_of(columns: Columns) -> Mapping[str, Shift]:
    """The shifts that a table can have: without numbers some change nothing."""
    if columns.is_number.any():
        return TABLE_SHIFTS
    return {name: one for name, one in TABLE_SHIFTS.items() if name in ("missing", "permuted")}


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
    rows, moves = inputs.astype(np.float64), columns.known(inputs) & columns.is_number
    num_rows, num_columns = len(rows), int(columns.group.max()) + 1
    if name == "missing":
        is_missing = rng.random((num_rows, num_columns)) < amount
        shifted = np.where(is_missing[:, columns.group], columns.mean, rows)
    elif name == "noisy":
        shifted = rows + moves * amount * columns.deviation * rng.standard_normal(rows.shape)
    elif name == "scaled":
        shifted = np.where(moves, columns.mean + amount * (rows - columns.mean), rows)
    elif name == "permuted":
        shifted = rows.copy()
        for column in rng.permutation(num_columns)[: int(np.ceil(amount * num_columns - 1e-9))]:
            # Its own generator, so that a column is permuted alike at every severity.
            order = np.random.default_rng([seed, column]).permutation(num_rows)
            shifted[:, columns.group == column] = rows[order][:, columns.group == column]
    else:
        shifted = rows.copy()
        moving = np.flatnonzero((columns.high > columns.low) & columns.is_number)
        column = rng.choice(moving, num_rows) if len(moving) else np.zeros(num_rows, int)
        span = (columns.high - columns.low)[column]
        ends = np.where(
            rng.integers(2, size=num_rows) == 1,
            columns.high[column] + amount * span,
            columns.low[column] - amount * span,
        )
        shifted[np.arange(num_rows), column] = ends
        flags = columns.flag[column]  # What lies beyond is known.
        shifted[np.flatnonzero(flags >= 0), flags[flags >= 0]] = 0
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
