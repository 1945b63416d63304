"""What a prediction does when one input moves: a fan for each column of a table."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation.table_shift import columns_of, is_table
from ensemble.scoring.view import NumberView
from ensemble.source import Feature, Source, in_memory

NUM_POINTS = 41
MARGIN = 0.25
"""Training ranges that a fan reaches beyond either end."""
MAX_COLUMNS = 100
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Fan(NamedTuple):
    """The predictions along the column that moves them most.

    Attributes:
        name: of the column.
        values: [P] of the column, of a table in its own units.
        low: its least training value.
        high: its largest.
        quantiles: [Q, P] of the mixture, at `LEVELS`.
        member_means: [M, P].
    """

    name: str
    values: NDArray
    low: float
    high: float
    quantiles: NDArray
    member_means: NDArray


def can_profile(source: Source) -> bool:
    """Whether examples are rows of not too many columns."""
    return is_table(source) and source.input_shape[0] <= MAX_COLUMNS


def profile_inputs(source: Source) -> np.ndarray:
    """Rows [F * P, F]: for each column P values of it, the others at their training median."""
    train = in_memory(source, "train").inputs
    middle = np.median(train, axis=0)
    low, high = train.min(axis=0), train.max(axis=0)
    rows = np.repeat(middle[None], len(middle) * NUM_POINTS, axis=0)
    for column in range(len(middle)):
        where = slice(column * NUM_POINTS, (column + 1) * NUM_POINTS)
        rows[where, column] = _values(float(low[column]), float(high[column]))
    return rows.astype(source.input_dtype)


def widest_fan(view: NumberView, source: Source) -> Fan | None:
    """The fan of the column along which the median moves most within the training range.

    Args:
        view: of `profile_inputs`.
        source: of the run.

    Returns:
        The fan; None where no prediction moves. An input that is only a part of what a table's
        column became does not move by itself.
    """
    columns, quantiles = columns_of(source), view.quantiles(LEVELS)
    medians = quantiles[LEVELS.index(0.5)].reshape(-1, NUM_POINTS)
    values = np.stack([_values(*ends) for ends in zip(columns.low, columns.high, strict=True)])
    inside = (values >= columns.low[:, None]) & (values <= columns.high[:, None])
    moved = np.array([np.ptp(one[where]) for one, where in zip(medians, inside, strict=True)])
    moved[columns.high <= columns.low] = 0
    features = [Feature(f"input {i}", i, True) for i in range(len(moved))]
    if source.table is not None:
        features = list(source.table.features)
        moved[[not one.moves for one in features]] = 0
    column = int(moved.argmax())
    if not moved[column] > 0:
        return None
    where = slice(column * NUM_POINTS, (column + 1) * NUM_POINTS)
    name, shift, scale = (getattr(features[column], one) for one in ("name", "shift", "scale"))
    return Fan(
        name,
        values[column] * scale + shift,
        float(columns.low[column]) * scale + shift,
        float(columns.high[column]) * scale + shift,
        quantiles[:, where],
        np.stack([one.point[where] for one in view.each()]),
    )


def _values(low: float, high: float) -> NDArray:
    reach = MARGIN * (high - low)
    return np.linspace(low - reach, high + reach, NUM_POINTS)
