"""Parquet files that may be larger than the memory: row groups are read one after the other.

`ensemble convert` writes such files as records. All columns but the target's are numbers,
which become float32: what a table's categories, dates and gaps become follows from all of its rows,
and a table with these is read by `table_source`, in memory.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble.errors import Damaged, UserError
from ensemble.notes import note
from ensemble.rounding import Rounding, is_rounded
from ensemble.source import Request
from ensemble.sources import own_arrays
from ensemble.sources.own_arrays import OwnData
from ensemble.sources.splitting import POOL
from ensemble.sources.tables.frames import of_frame
from ensemble.sources.tables.raw_columns import Column, kind_of_target, named, target_values
from ensemble.sources.tables.table_files import decoded_bytes, files_of, open_parquet, reading
from ensemble.storage.memory import max_bytes


class _Group(NamedTuple):
    """A row group of a file.

    Attributes:
        file: that it is in.
        number: of the group there.
        num_rows: that it has.
        num_bytes: that its columns take.
    """

    file: Path
    number: int
    num_rows: int
    num_bytes: int


class _Rounded:
    """Says which columns float32 has rounded, once all row groups of all parts have been read.

    Args:
        name: of the data, for messages.
        num_groups: that there are.
    """

    def __init__(self, name: str, num_groups: int):
        self._name, self._num_left = name, num_groups
        self._seen, self._columns = set[_Group](), dict[str, Rounding]()

    def add(self, group: _Group, column: str, values: np.ndarray) -> None:
        """Looks at the values [n] of a column, some of which may be missing."""
        if group in self._seen or not is_rounded(values.dtype):
            return
        finite = values[np.isfinite(values)]
        if len(finite):
            self._columns.setdefault(column, Rounding()).add(finite)

    def done(self, group: _Group) -> None:
        """Takes a row group for read, or for one that cannot be."""
        if group in self._seen:
            return
        self._seen.add(group)
        self._num_left -= 1
        if self._num_left:
            return
        rounded = [column for column, found in self._columns.items() if found.error > 0]
        if rounded:
            note(
                f"{self._name}: records hold float32, about seven digits of a number; rounded are "
                f"the columns {named(rounded, 20)}."
            )
        for column in rounded:
            self._columns[column].note(f"{self._name}: column {column!r}")


class ParquetRows:
    """Rows [N, F] of numbers, of which one row group at a time is in memory.

    Args:
        groups: in the order of the rows.
        columns: names [F] of the columns to read.
        rounded: is shown what is read.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, groups: Sequence[_Group], columns: Sequence[str], rounded: _Rounded):
        self._groups, self._columns, self._rounded = groups, list(columns), rounded
        self._ends = np.cumsum([one.num_rows for one in groups])
        self.shape = (int(self._ends[-1]), len(columns))
        self._held: tuple[int, np.ndarray | UserError] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | np.ndarray, /) -> np.ndarray:
        """Reads rows [n, F].

        Raises:
            UserError: a row group is damaged, or holds what is no finite number; it is named.
        """
        if isinstance(where, slice):
            where = np.arange(*where.indices(len(self)))
        rows = np.asarray(where)
        found, of_rows = np.empty((len(rows), self.shape[1]), np.float32), self._groups_of(rows)
        for group in np.unique(of_rows).tolist():
            own = rows[of_rows == group] - (self._ends[group] - self._groups[group].num_rows)
            values = self._read(group)[own]
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                i, k = bad[0]
                raise Damaged(
                    f"{_name(self._groups[group])}, row {own[i]}: column {self._columns[k]!r} has "
                    "no finite number",
                    "fill or remove what is missing",
                )
            found[of_rows == group] = values
        return found

    def _groups_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, rows, side="right")

    def _read(self, group: int) -> np.ndarray:
        """A row group, or why it cannot be read, which is found out once."""
        if self._held is None or self._held[0] != group:
            try:
                self._held = group, _values(self._groups[group], self._columns, self._rounded)
            except UserError as error:
                self._held = group, error
            self._rounded.done(self._groups[group])
        held = self._held[1]
        if isinstance(held, UserError):
            raise UserError(str(held))  # Anew: an exception keeps what raised it.
        return held


def _name(group: _Group) -> str:
    return f"{group.file}: row group {group.number}"


def _values(group: _Group, columns: list[str], rounded: _Rounded) -> np.ndarray:
    """The numbers [n, F] of a row group, some of which may be missing."""
    what = _name(group)
    if group.num_bytes > max_bytes():
        raise UserError(
            f"{what} takes {group.num_bytes:,} bytes, more than the {max_bytes():,} allowed here; "
            "write the file with smaller row groups"
        )
    with reading(what):
        table = open_parquet(group.file, what).read_row_group(group.number, columns=columns)
    if table.num_rows != group.num_rows:
        raise UserError(f"{what} holds {table.num_rows} rows, not {group.num_rows}; restore it")
    found = np.empty((group.num_rows, len(columns)), np.float32)
    for i, name in enumerate(columns):
        values = table.column(name).to_numpy()
        with np.errstate(over="ignore"):  # Reported when the row is read.
            found[:, i] = values
        rounded.add(group, name, values)
    return found


def given_parquet(name: str, request: Request) -> OwnData:
    """The examples of Parquet files, whose inputs are read by row groups.

    Args:
        name: `parquet:PATH`.
        request: with the target's name.

    Raises:
        UserError: there is no such column, or another one holds no numbers, or files differ.
    """
    parts = files_of(name)
    first = next(iter(parts.values()))[0]
    schema = open_parquet(first, name).schema_arrow
    target = request.table.target
    if target not in schema.names:
        wrong = f"has no column {target!r} to learn" if target else "needs a column to learn"
        raise UserError(f"{name} {wrong}; set config.target to one of {named(schema.names, 20)}")
    columns = [
        one for one in schema.names if one != target and not one.startswith("__index_level_")
    ]
    _check_numbers(schema, columns, name)
    groups, labels = dict[str, list[_Group]](), dict[str, Any]()
    for part, files in parts.items():
        groups[part] = [group for file in files for group in _groups(file, schema)]
        if not groups[part]:
            raise UserError(f"{name}: {part} has no rows")
    _check_targets(sum(one.num_rows for own in groups.values() for one in own), name)
    for part, files in parts.items():
        labels[part] = _target(files, target, name)
    rounded = _Rounded(name, sum(map(len, groups.values())))
    inputs = {part: ParquetRows(own, columns, rounded) for part, own in groups.items()}
    kind = request.table.kind or kind_of_target(labels[POOL if POOL in labels else "train"], target)
    arrays = {}
    for part, column in labels.items():
        prefix = "" if part == POOL else f"{part}_"
        arrays[f"{prefix}{kind}"] = target_values(column, target, kind)
        arrays[f"{prefix}inputs"] = np.zeros((len(column), 1), np.float32)  # Stand for rows.
    checked = own_arrays.check_arrays(arrays, name)
    note(f"{name}: inputs are the columns {named(columns, 20)}, in this order and without names.")
    return checked._replace(inputs=inputs, input_dtype=ParquetRows.dtype)


def _groups(file: Path, schema: Any) -> list[_Group]:
    content = open_parquet(file, str(file))
    if not content.schema_arrow.equals(schema):
        raise UserError(f"{file} has other columns, or types of them, than the first file")
    metadata = content.metadata
    every = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [
        _Group(file, i, one.num_rows, decoded_bytes(one))
        for i, one in enumerate(every)
        if one.num_rows
    ]


def _check_targets(num_rows: int, name: str) -> None:
    """Refuses more rows than memory can hold targets of."""
    allowed = own_arrays.max_data_bytes() // 8
    if num_rows > allowed:
        raise UserError(
            f"{name} has {num_rows:,} rows, more than the {allowed:,} allowed here, as their "
            "targets are in memory; use fewer"
        )


def _target(files: Sequence[Path], target: str, name: str) -> Column:
    """The column to learn, of all files."""
    found = []
    for file in files:
        with reading(str(file)):
            found.append(open_parquet(file, name).read(columns=[target]))
    columns = [of_frame(one, name)[target] for one in found if one.num_rows]
    return Column(np.concatenate([one.values for one in columns]), columns[0].kind)


def _check_numbers(schema: Any, columns: Sequence[str], name: str) -> None:
    import pyarrow.types as types  # Only where Parquet files are read.

    kinds = (types.is_integer, types.is_floating, types.is_boolean)
    bad = [one for one in columns if not any(is_kind(schema.field(one).type) for is_kind in kinds)]
    if not columns:
        raise UserError(f"{name} has no column beside the target")
    if bad:
        raise UserError(
            f"{name}: {named(bad)} {'is' if len(bad) == 1 else 'are'} not of numbers; records hold "
            "numbers alone: encode or drop such columns, or train with "
            "--config.dataset=parquet:PATH in memory"
        )
