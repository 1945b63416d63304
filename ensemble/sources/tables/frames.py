"""Columns of a program's tables: data frames, mappings, rows and arrays."""

import datetime
import difflib
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError, in_one_line, shown
from ensemble.notes import note
from ensemble.sources.tables import is_table, read_table
from ensemble.sources.tables.raw_columns import Column, named, num_rows


def take_target(data: Any, target: str, what: str) -> tuple[dict[str, Column], Column]:
    """Columns of a data frame, and the column to learn.

    Raises:
        UserError: there is no such column.
    """
    columns = of_frame(data, what)
    if target not in columns:
        close = difflib.get_close_matches(target, columns, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(
            f"config.target={target!r} is no column of {what}, which has "
            f"{named([*columns], 20)}{shown(hint)}"
        )
    return columns, columns.pop(target)


def of_frame(
    data: Any, what: str = "the table", needed: Collection[str] | None = None
) -> dict[str, Column]:
    """Raw columns of a data frame, or of a mapping from names to values.

    Args:
        data: a frame, or a mapping from names of columns to their values [N].
        what: it is, for messages.
        needed: names of columns; others that cannot be columns, such as lists, are left out. None:
            all are needed.

    Raises:
        UserError: naming the column that holds what cannot be a column.
    """
    if not (is_table(data) or isinstance(data, Mapping)):
        raise UserError(
            f"{what} has a {type(data).__name__} beside data frames; give all splits as data frames"
        )
    if hasattr(data, "column_names"):  # Of pyarrow.
        data = {name: data.column(name) for name in data.column_names}
    names = list(data.keys() if isinstance(data, Mapping) else data.columns)
    if len({str(name) for name in names}) < len(names):
        raise UserError(f"{what} has two columns of one name; rename one")
    columns = {}
    for name in names:
        try:
            columns[str(name)] = _of_values(data[name], f"column {str(name)!r}")
        except UserError:
            if needed is None or str(name) in needed:
                raise
    if not columns or not num_rows(columns):
        raise UserError(f"{what} has no rows or no columns; give at least one of each")
    lengths = {len(one) for one in columns.values()}
    if len(lengths) > 1:
        raise UserError(f"{what} has columns of different lengths, {sorted(lengths)}")
    return columns


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


def of_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Column]:
    """Raw columns of rows, mappings from names to values; a value that is not there is missing."""
    found = [name for name in names if any(name in row for row in rows)]
    return of_frame({name: [row.get(name) for row in rows] for name in found})


def of_array(array: np.ndarray, names: Sequence[str]) -> dict[str, Column]:
    """Raw columns [N, C] that have no names: they are taken in the order of those learned.

    Raises:
        UserError: there are more or fewer.
    """
    if array.ndim != 2 or array.shape[1] != len(names):
        raise UserError(
            f"inputs of shape {array.shape}: the ensemble has learned a table of the "
            f"{len(names)} columns {named(names)}; give a data frame, or a mapping, by these names"
        )
    return of_frame({name: array[:, i] for i, name in enumerate(names)})


def _of_values(values: Any, what: str) -> Column:
    """A column of a frame, or of anything that is a sequence of values."""
    if isinstance(values, Column):
        return values
    dtype = str(getattr(values, "dtype", "")).lower()
    if dtype.startswith("datetime"):  # Of pandas, with a zone too, of polars and of NumPy.
        if hasattr(values, "dt") and getattr(values.dt, "tz", None) is not None:
            values = values.dt.tz_convert("UTC").dt.tz_localize(None)
        return Column(_days(np.asarray(values)), "date")
    try:
        if str(getattr(values, "type", "")).startswith("dictionary"):
            values = values.to_pylist()  # Of pyarrow: else a missing value has another text.
        if hasattr(values, "to_numpy"):
            values = values.to_numpy()
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise UserError(
            f"{what} holds values that cannot be read: {in_one_line(error, 100)}; correct or "
            "remove it"
        ) from None
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0)
    if array.ndim != 1:
        if array.ndim == 0:
            raise UserError(f"{what} holds one value, and no sequence; give a row as [{{...}}]")
        raise UserError(f"{what} holds sequences; a column has one value in each row")
    if dtype.startswith(("categor", "enum")):
        return _of_objects(list(values), what, is_category=True)
    if array.dtype.kind in "buif":
        return Column(array.astype(np.float64), "boolean" if array.dtype.kind == "b" else "number")
    if array.dtype.kind in "mM":
        return _of_times(array, what)
    return _of_objects(list(values), what)


def _of_times(array: np.ndarray, what: str) -> Column:
    """A column of dates, or of durations in days."""
    is_date = array.dtype.kind == "M"
    try:  # NumPy 2.5 raises where older ones wrap around.
        micros = array.astype("datetime64[us]" if is_date else "timedelta64[us]")
    except OverflowError:
        raise UserError(f"{what} holds times that are too far away for microseconds") from None
    if is_date:
        return Column(_days(micros), "date")
    days = np.where(np.isnat(micros), np.nan, micros.astype(np.int64) / 86_400e6)
    return Column(days, "number")


def _of_objects(values: list[Any], what: str, is_category: bool = False) -> Column:
    """A column of Python's objects, which must be of one type."""
    given = [None if _is_missing(one) else one for one in values]
    present = [one for one in given if one is not None]
    if is_category:
        present, given = [], [None if one is None else _as_text(one) for one in given]
    kinds = {_kind(one) for one in present} or {"category" if is_category else "number"}
    if len(kinds) > 1 or "" in kinds:
        types = ", ".join(sorted({type(one).__name__ for one in present}))
        raise UserError(
            f"{what} holds values of the types {types}; make them numbers, dates, truth values "
            "or texts"
        )
    (kind,) = kinds
    if kind == "category":
        texts = ["" if one is None else str(one).strip() for one in given]
        return Column(np.array(texts, object), "category" if is_category else "text")
    if kind == "date":
        days = [np.nan if one is None else read_table.days(one.isoformat()) for one in given]
        return Column(np.array(days, np.float64), "date")
    found = [np.nan if one is None else float(one) for one in given]
    return Column(np.array(found, np.float64), kind)


def _as_text(value: Any) -> str:
    """A category as `Column.texts` writes it."""
    return f"{value:.15g}" if isinstance(value, float | np.floating) else str(value)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)  # NaN and NaT differ from themselves.
    except (TypeError, ValueError):  # As pandas.NA, which is neither.
        return type(value).__name__ == "NAType"


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "category"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Number) or type(value).__name__ == "Decimal":
        return "" if isinstance(value, complex) else "number"
    return "date" if isinstance(value, datetime.date | datetime.datetime) else ""


def _days(values: np.ndarray) -> np.ndarray:
    """Days since 1970 of dates, float64 [N], NaN where one is missing."""
    micros = values.astype("datetime64[us]")
    days = micros.astype(np.int64) / 86_400e6
    return np.where(np.isnat(micros), np.nan, days)
