"""Raw columns of a table: of files, data frames, mappings, rows and arrays, all read by Arrow."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.tables import is_table, read_table
from ensemble.errors import InputError, in_one_line, quoted, shown

if TYPE_CHECKING:
    import pyarrow


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        values: [N] float64 with NaN where a value is missing, of truth values 0 and 1, of dates
            days since 1970; or [N] texts, empty where a value is missing.
        kind: number, boolean, date, category or drop, where it is known; else `text` of texts of a
            frame, and empty of texts of a file.
        detail: why it is left out, or how its texts are written.
    """

    values: NDArray
    kind: str = ""
    detail: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, rows: NDArray | slice) -> "Column":
        """Some of its rows."""
        return dataclasses.replace(self, values=self.values[rows])

    def without(self, missing: Sequence[str]) -> "Column":
        """The same with gaps in place of values that stand for one, as of `config.na_values`."""
        values = read_table.blank(self.values, missing, self.kind)
        return Column(np.asarray(values, self.values.dtype), self.kind)

    def texts(self) -> NDArray:
        """[N] texts, empty where a value is missing; whole numbers have no decimal point."""
        if self.values.dtype.kind != "f":
            return self.values
        as_text = bool if self.kind == "boolean" else _plain
        texts = ["" if np.isnan(one) else str(as_text(one)) for one in self.values.tolist()]
        return np.array(texts, object)


def _plain(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < read_table.WHOLE else value


Columns = Mapping[str, Column]
"""Columns of one length by their names."""


def num_rows(columns: Columns) -> int:
    """N."""
    return len(next(iter(columns.values())))


def named(columns: Mapping[str, Any], name: str, what: str, who: str) -> Any:
    """Returns a column.

    Args:
        columns: That there are.
        name: Name of the column.
        what: The table is, for messages.
        who: Asks for the column, for messages.

    Raises:
        InputError: There is no such column.
    """
    if name not in columns:
        raise InputError(
            f"{what} has no column {shown(repr(name))}, which {who}; it has "
            f"{quoted([*columns], 20)}: set one of these"
        )
    return columns[name]


def check_whole(is_missing: NDArray, what: str) -> None:
    """Refuses missing values.

    Raises:
        InputError: As said.
    """
    if is_missing.any():
        raise InputError(
            f"{what} is missing in {is_missing.sum()} of {len(is_missing)} rows, first in row "
            f"{is_missing.argmax() + 1}: remove these rows, or fill it in"
        )


def joined(tables: Mapping[str, Columns]) -> dict[str, Column]:
    """Joins tables with the columns of the first one, one below the other.

    Args:
        tables: By what messages call them.

    Raises:
        InputError: A table lacks a column, or has another kind of it.
    """
    found = {}
    for name in next(iter(tables.values())):
        parts = [named(table, name, what, "other parts have") for what, table in tables.items()]
        kind, *others = sorted({part.kind for part in parts})
        if others and [kind, *others] != ["category", "text"]:
            raise InputError(
                f"column {shown(repr(name))} holds {kind}s and {others[0]}s in parts of the table: "
                "convert it"
            )
        found[name] = Column(np.concatenate([one.values for one in parts]), *others or [kind])
    return found


def take_target(data: Any, target: str, what: str) -> tuple[dict[str, Column], Column]:
    """Columns of a data frame, and the column to learn.

    Raises:
        InputError: there is no such column.
    """
    columns = of_frame(data, what)
    named(columns, target, what, "config.target names")
    return columns, columns.pop(target)


def of_frame(
    data: Any, what: str = "the table", needed: Collection[str] | None = None
) -> dict[str, Column]:
    """Raw columns of a data frame, or of a mapping from names to values.

    Args:
        data: a frame of pandas, or of anything with Arrow's interface, such as polars; or a
            mapping from names of columns to their values [N].
        what: it is, for messages.
        needed: names of the columns to take; None: all.

    Raises:
        InputError: naming the column that holds what cannot be a column.
    """
    if hasattr(data, "items"):  # A mapping, or a frame of pandas.
        pairs = data.items()
    elif is_table(data):
        import pyarrow  # Of tables alone.

        table = pyarrow.table(data)
        pairs = zip(table.column_names, table.columns, strict=True)
    else:
        raise InputError(
            f"{what} has a {type(data).__name__} in place of named columns: give data frames"
        )
    columns: dict[str, Column] = {}
    for name, values in pairs:
        if str(name) in columns:
            raise InputError(f"{what} has two columns of one name, {name}; rename one")
        if needed is None or str(name) in needed:
            columns[str(name)] = _of_values(values, f"column {name!r}")
    lengths = {len(one) for one in columns.values()}
    if len(lengths) > 1 or 0 in lengths or not (columns or needed):
        raise InputError(
            f"{what} has no rows, no columns, or columns of different lengths, {sorted(lengths)}"
        )
    return columns


def _of_values(values: Any, what: str) -> Column:
    """A column of anything that Arrow takes for a sequence of values."""
    if isinstance(values, Column):
        return values
    import pyarrow  # Of tables alone.

    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise InputError(f"{what} holds one value, and no sequence; give a row as [{{...}}]")
    try:
        if hasattr(values, "cat"):  # Of pandas: categories may be of any type, such as intervals.
            values = values.cat.rename_categories(str)
        if not isinstance(values, pyarrow.Array | pyarrow.ChunkedArray):
            values = pyarrow.array(values, from_pandas=True)
        return _of_arrow(values)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        types = sorted({type(one).__name__ for one in values} - {"NoneType", "NAType"})
        raise InputError(
            f"{what} holds values that are not of one kind, numbers, dates, truth values or texts "
            f"(types {', '.join(types)}: {in_one_line(error, 100)}); convert it"
        ) from None


def _of_arrow(values: "pyarrow.ChunkedArray") -> Column:
    """A column of an array of Arrow.

    Raises:
        TypeError: its values are of no kind that a column can have.
        pyarrow.ArrowException: likewise.
    """
    # Of tables alone.
    import pyarrow
    from pyarrow import compute, types

    kind = "category" if types.is_dictionary(values.type) else "text"
    if kind == "category":
        values = values.cast(values.type.value_type)
    elif types.is_temporal(values.type) and not types.is_time(values.type):
        times = values.to_numpy(zero_copy_only=False)
        times = times.astype(f"{times.dtype.kind}8[us]")
        days = np.where(np.isnat(times), np.nan, times.astype(np.int64) / 86_400e6)
        return Column(days, "date" if times.dtype.kind == "M" else "number")
    elif not (types.is_binary(values.type) or "string" in str(values.type)):
        with contextlib.suppress(pyarrow.ArrowInvalid):  # Of whole numbers beyond 2**53.
            found = values.cast("float64").to_numpy(zero_copy_only=False)
            return Column(found, "boolean" if types.is_boolean(values.type) else "number")
    texts = compute.fill_null(compute.utf8_trim_whitespace(values.cast("string")), "")
    return Column(texts.to_numpy(zero_copy_only=False).astype(object), kind)
