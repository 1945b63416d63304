"""Data frames: the names of their columns, and the order of columns and rows."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.notes import note

_MAX_NAMED = 5


def names_of(values: Any) -> tuple[str, ...] | None:
    """Names of a data frame's columns, as texts.

    Returns:
        F names; None where `values` is no data frame, or its names are not texts or whole numbers
        that all differ.
    """
    columns = _columns(values)
    return tuple(columns) if columns and len(set(columns)) == len(columns) else None


def in_order(values: Any, names: Sequence[str] | None, what: str) -> Any:
    """Brings a data frame's columns into the order of those that were learned.

    A column that was not learned is left out, which the log says once. A frame whose columns are
    called 0, 1, ... is taken for an array unless it was learned by these names.

    Args:
        values: a data frame; anything else is returned as it is.
        names: of the columns that were learned; None where these had none.
        what: the values are, for messages.

    Raises:
        UserError: a column is missing, or there twice.
    """
    found = _columns(values)
    if not names or not found or tuple(found) == tuple(names):
        return values
    missing = [name for name in names if name not in found]
    if missing and found == [str(k) for k in range(len(found))]:
        return values
    if missing:
        raise UserError(
            f"{what} lack {_listed('column', missing)}, which the ensemble has learned; their "
            f"columns are {_listed('', found)}: give all of them under the same names"
        )
    if twice := [name for name in names if found.count(name) > 1]:
        raise UserError(f"{what} have {_listed('column', twice)} twice: give each of them once")
    if extra := [name for name in found if name not in names]:
        _say_once(f"{what}: what was not learned is left out: {_listed('column', extra)}.")
    return values[[values.columns[found.index(name)] for name in names]]


def note_other_rows(inputs: Any, targets: Any, what: str) -> None:
    """Notes it if both have an index of pandas, with the same entries in another order."""
    one: Any = getattr(inputs, "index", None)
    other: Any = getattr(targets, "index", None)
    if not all(hasattr(index, "equals") and index.is_unique for index in (one, other)):
        return
    if len(one) == len(other) and not one.equals(other) and one.isin(other).all():
        note(
            f"{what} have the same index in another order, and are paired by position: if rows "
            "belong together by the index, bring them into one order, as by y.loc[X.index]."
        )


def _columns(values: Any) -> list[str]:
    """The columns of a data frame of pandas or Polars by name; empty where it has no names."""
    columns = getattr(values, "columns", None)
    if not isinstance(columns, Iterable):
        return []
    names = list(columns)
    are_names = all(isinstance(one, str | int | np.integer) for one in names)
    return [str(one) for one in names] if are_names else []


def _listed(noun: str, names: Sequence[str]) -> str:
    """Names in words, the first of them where there are many."""
    some = ", ".join(repr(shown(name)) for name in names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{noun}{'s' if noun and len(names) > 1 else ''} {some}{more}".strip()


@functools.cache
def _say_once(line: str) -> None:
    note(line)
