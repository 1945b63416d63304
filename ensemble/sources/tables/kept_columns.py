"""Columns of a table's file that predictions keep, such as the names of its rows."""

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble.errors import UserError, in_one_line, shown
from ensemble.sources.own_arrays import local_path
from ensemble.sources.tables import read_table
from ensemble.sources.tables.raw_columns import named
from ensemble.sources.tables.table_files import open_parquet, reading

Kept = Mapping[str, Any]
"""Columns by name: texts of a CSV file, and of a Parquet file a `pyarrow.ChunkedArray` each."""


def read_kept(path: str, names: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    """Reads columns of a table's file as they are there, which `Column` does not keep.

    Args:
        path: of a CSV or Parquet file that was read as a table.
        names: of the columns to keep.
        columns: that it has, by name.

    Raises:
        UserError: there is no such column, or it is named twice.
    """
    for i, name in enumerate(names):
        if name not in columns:
            close = difflib.get_close_matches(name, columns, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(
                f"--keep={name} is no column of {path}, which has {named(columns, 20)}{shown(hint)}"
            )
        if name in names[:i]:
            raise UserError(f"--keep names the column {shown(repr(name))} twice; name it once")
    file = local_path(path)
    if Path(path).suffix.lower() == ".csv":
        texts = read_table.read_csv(file, as_is=True)
        return {name: texts[name] for name in names}
    content = open_parquet(file, path)
    with reading(path):
        table = content.read(columns=[*names])
    return {name: table.column(name) for name in names}


def as_values(kept: Kept, path: str) -> dict[str, list[Any]]:
    """Kept columns as JSON and CSV have them: truth values, numbers and texts, None where missing.

    Of a Parquet file, dates and decimal numbers become texts.

    Args:
        kept: of `read_kept`.
        path: of their file, for messages.

    Raises:
        UserError: a column holds what these forms cannot: lists, bytes, infinite numbers.
    """
    return {
        name: column if isinstance(column, list) else _values(column, f"--keep={name}: {path}")
        for name, column in kept.items()
    }


def _values(column: Any, what: str) -> list[Any]:
    """The values of a `pyarrow.ChunkedArray`."""
    import pyarrow  # Only where Parquet files are read.

    types, remedy = pyarrow.types, "write Parquet by --out=NAME.parquet, or leave it out"
    try:
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        is_plain = (types.is_boolean, types.is_integer, types.is_floating)
        if not any(is_one(column.type) for is_one in is_plain):
            column = column.cast(pyarrow.string())
        values: list[Any] = column.to_pylist()
    except (pyarrow.ArrowException, ValueError) as error:
        raise UserError(
            f"{what} has the type {column.type} in it, which is no text ({in_one_line(error, 100)})"
            f"; {remedy}"
        ) from None
    if types.is_floating(column.type):
        values = [None if one is None or math.isnan(one) else one for one in values]
        if any(one is not None and math.isinf(one) for one in values):
            raise UserError(f"{what} has infinite numbers in it, which JSON has not; {remedy}")
    return values
