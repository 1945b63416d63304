"""The column to learn: whether it holds classes or numbers, and these."""

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.sources.labels import are_classes
from ensemble.sources.tables import read_table
from ensemble.sources.tables.raw_columns import Column, kind_of

MAX_CLASS = 2.0**53
"""Below it every whole number is one of float64, and none is taken for another."""


def kind_of_target(column: Column, name: str) -> str:
    """Whether a column holds `labels` of classes or `targets`, numbers.

    Whole numbers of few different values are classes.

    Raises:
        UserError: it holds infinite numbers.
    """
    kind, _ = kind_of(column, name)
    if kind != "number":
        return "labels"
    values = _numbers(column, name)
    return "labels" if are_classes(values[~np.isnan(values)]) else "targets"


def target_values(column: Column, name: str, kind: str) -> np.ndarray:
    """Targets [N] of a column, float64, or labels, whole numbers or texts.

    Raises:
        UserError: some are missing, or no numbers where they must be.
    """
    check_none_is_missing(column, name)
    if kind == "targets":
        try:
            return read_table.parse(column.values, "number", name)
        except ValueError as error:
            raise UserError(
                f"the target must be numbers: {shown(str(error))}; set "
                "config.likelihood='categorical' for classes"
            ) from None
    if kind_of(column, name)[0] == "number":
        values = _numbers(column, name)
        is_whole = (values == np.floor(values)) & (np.abs(values) < MAX_CLASS)
        if not is_whole.all():
            raise UserError(
                f"the target {shown(repr(name))} holds {values[~is_whole][0]:g}, which is no "
                "class: set config.likelihood='gaussian' to learn numbers"
            )
        return values.astype(np.int64)
    return column.texts().astype(str)


def check_none_is_missing(column: Column, name: str) -> None:
    """Checks that each row has a target.

    Raises:
        UserError: one has none.
    """
    is_missing = column.texts() == ""
    if is_missing.any():
        raise UserError(
            f"the target {shown(repr(name))} is missing in {is_missing.sum()} of {len(column)} "
            f"rows, first in row {is_missing.argmax() + 1}: remove these rows"
        )


def _numbers(column: Column, name: str) -> np.ndarray:
    """The values [N] of a column of numbers, float64, NaN where one is missing."""
    try:
        return read_table.parse(column.values, "number", name)
    except ValueError as error:  # They are infinite.
        raise UserError(
            f"the target must be finite: {shown(str(error))}; correct or remove these rows"
        ) from None
