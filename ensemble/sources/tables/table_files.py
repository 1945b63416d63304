"""Files of tables: CSV and Parquet, one, or a folder of splits or of parts."""

import collections
import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.errors import UserError, in_one_line
from ensemble.sources.own_arrays import local_path
from ensemble.sources.splitting import POOL, split_of
from ensemble.sources.tables import read_table
from ensemble.sources.tables.frames import of_frame
from ensemble.sources.tables.raw_columns import Column, Columns, named, num_rows, parses
from ensemble.storage.memory import max_bytes

PYARROW = "pyarrow>=18,<27"
"""What reads Parquet files: pip's name of it."""


def read_files(name: str) -> dict[str, dict[str, Column]]:
    """Reads a table's file, or those of a folder: of splits, or parts of one table.

    Args:
        name: such as `csv:PATH`, whose prefix is the files' form, and their suffix in a folder.

    Returns:
        Columns by the splits that files or folders are named after; else of `POOL` alone.

    Raises:
        UserError: a file cannot be read, or is no such table.
    """
    form = name.partition(":")[0]
    return {
        part: joined({str(file): _read_file(form, file, name) for file in files})
        for part, files in files_of(name).items()
    }


def files_of(name: str) -> dict[str, list[Path]]:
    """The files of a table, as `read_files` reads them.

    Raises:
        UserError: there are none, or their names are of splits in part.
    """
    form, _, path = name.partition(":")
    place = local_path(path)
    if place.is_file():
        return {POOL: [place]}
    if not place.is_dir():
        raise UserError(f"{name}: there is no file or folder {place.absolute()}; check the path")
    entries = [one for one in sorted(place.iterdir()) if not one.name.startswith((".", "_"))]
    files = {one: _files(form, one) for one in entries}
    files = {one: found for one, found in files.items() if found}
    if not files:
        raise UserError(f"{name}: the folder has no file *.{form}; check the path")
    splits = {one: split_of(one.stem) for one in files}
    if not all(splits.values()):
        if any(splits.values()):
            raise UserError(
                f"{name} holds {named([one.name for one in files])}; name all of them after "
                f"splits, as train.{form} and test.{form}, or none, as parts of one table"
            )
        return {POOL: [file for found in files.values() for file in found]}
    if len(set(splits.values())) < len(splits) or "train" not in splits.values():
        raise UserError(f"{name} must hold one train.{form}, and one of any other split")
    return {splits[one]: found for one, found in files.items()}


def rows_of_files(name: str) -> dict[str, Column]:
    """Reads the rows of a table's files that are to be predicted: to test, else all.

    Raises:
        UserError: as of `read_files`.
    """
    parts = read_files(name)
    return next(parts[part] for part in ("test", POOL, "train") if part in parts)


def read_if_table(paths: Sequence[str], needed: Sequence[str] = ()) -> dict[str, Column] | None:
    """Reads the columns of a file, where it is one of a table by its name; else None.

    Args:
        paths: of the file, alone.
        needed: names; others of a Parquet file that cannot be columns, such as lists, are left out.

    Raises:
        UserError: it cannot be read, or there are others beside it.
    """
    forms = [Path(path).suffix.lower().removeprefix(".") for path in paths]
    if not READERS.keys() & set(forms):
        return None
    (form, *_), (path, *others) = forms, paths
    if others:
        raise UserError(f"{path} is a table: give it alone")
    file = local_path(path)
    if not file.is_file():
        raise UserError(f"{path}: there is no file {file.absolute()}; check the path")
    return _read_file(form, file, path, needed)


def _files(form: str, place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob(f"*.{form}"))
    return [place] if place.suffix.lower() == f".{form}" else []


def joined(parts: Mapping[str, Columns]) -> dict[str, Column]:
    """Joins tables of the same columns, one below the other.

    Raises:
        UserError: their columns differ.
    """
    (_, first), *others = parts.items()
    for what, part in others:
        check_names(part, first, what)
    if not others:
        return dict(first)
    found = {}
    for name in first:
        columns = [part[name] for part in parts.values()]
        if len({(one.kind, one.values.dtype.kind) for one in columns}) > 1:
            raise UserError(f"column {name!r} has different types in the files of one table")
        found[name] = Column(np.concatenate([one.values for one in columns]), columns[0].kind)
    return found


def check_names(found: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Refuses a table that lacks columns.

    Raises:
        UserError: naming them.
    """
    absent = [name for name in expected if name not in found]
    if absent:
        word = "column" if len(absent) == 1 else "columns"
        raise UserError(f"{what} lacks the {word} {named(absent)}, which other files of it have")


def _read_file(
    form: str, file: Path, name: str, needed: Sequence[str] | None = None
) -> dict[str, Column]:
    what = f"{name}: {file.name}" if file.name not in name else name
    _check_size(file.stat().st_size, what)
    is_typed = form == "parquet"
    found = read_parquet(file, what, needed) if is_typed else READERS[form](file, what)
    if not found or not num_rows(found):
        raise UserError(f"{what} has no rows; give a table with at least one below its header")
    return found


def _check_size(num_bytes: int, what: str) -> None:
    """Refuses what memory cannot hold: as texts a file takes some fifteen times as much."""
    if num_bytes > max_bytes():
        raise UserError(
            f"{what} takes {num_bytes:,} bytes, more than the {max_bytes():,} allowed here; "
            "ensemble convert writes Parquet files of numbers as records, which may be "
            "larger than the memory"
        )


def read_csv(file: Path, what: str) -> dict[str, Column]:
    """Reads a CSV file, whose first line has the names of columns.

    Raises:
        UserError: the file is empty, has no header, a broken row, or bytes that are no text.
    """
    try:
        names = _header(file, what)
        columns = read_table.read_csv(file)
        found = {one: Column(np.array(columns[one], object)) for one in names}
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(f"{what} is no text in UTF-8; save it as CSV in UTF-8") from None
    except KeyError:  # A name in quotes goes on in the second line.
        raise UserError(f"{what} must have the names of columns in its first line") from None
    except (csv.Error, ValueError) as error:
        raise UserError(f"{what}: {in_one_line(error)}; correct or remove it") from None
    except OSError as error:
        raise UserError(f"{what} cannot be read: {error.strerror or error}") from None
    if "" in found:  # As pandas.DataFrame.to_csv writes the index.
        if found[""].values.tolist() != [str(i) for i in range(num_rows(found))]:
            raise UserError(f"{what} has a column without a name; name it in the first line")
        found.pop("")
    return found


def _header(file: Path, what: str) -> list[str]:
    with open(file, newline="", encoding="utf-8-sig") as content:
        line = content.readline()
    if not line.strip():
        raise UserError(f"{what} is empty; its first line must have the names of columns")
    mark = max(",;\t|", key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=mark))]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    check_header(names, what)
    if twice:
        raise UserError(f"{what} has two columns of the name {named(twice, 1)}; rename one")
    return names


def check_header(names: Sequence[str], what: str) -> None:
    """Refuses a first line of a text file that holds values, and no names of columns.

    Raises:
        UserError: as said.
    """
    values = [name for name in names if parses("number", name)]
    if len(values) > len(names) / 2:
        raise UserError(
            f"{what} has no header: its first line holds {named(values, 3)}; write the names of "
            "the columns there"
        )


def read_parquet(file: Path, what: str, needed: Sequence[str] | None = None) -> dict[str, Column]:
    """Reads a Parquet file; `needed` is as of `frames.of_frame`.

    Raises:
        UserError: pyarrow is not installed, or the file is damaged or holds what is no column.
    """
    content = open_parquet(file, what)
    groups = map(content.metadata.row_group, range(content.metadata.num_row_groups))
    _check_size(sum(map(decoded_bytes, groups)), what)
    with reading(what):
        table = content.read()
        index = [one for one in table.column_names if one.startswith("__index_level_")]
    return of_frame(table.drop_columns(index), what, needed)


def decoded_bytes(group: Any) -> int:
    """What a row group of numbers may take in memory: in a file equal ones take hardly any room.

    Args:
        group: its metadata, a `pyarrow.parquet.RowGroupMetaData`.
    """
    # What a column says of itself is not asked for: of a damaged file pyarrow ends the process.
    return int(max(group.total_byte_size, 8 * group.num_rows * group.num_columns))


def open_parquet(file: Path, what: str) -> Any:
    """Opens a Parquet file as a `pyarrow.parquet.ParquetFile`.

    Raises:
        UserError: pyarrow is not installed, or it is no such file.
    """
    try:
        import pyarrow.parquet  # Only where Parquet files are read.
    except ImportError:
        raise UserError(f"{what} needs pyarrow: pip install '{PYARROW}'") from None
    with reading(what):
        # Memory maps would let a file that changes during the read crash the process.
        return pyarrow.parquet.ParquetFile(file)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns what pyarrow raises into one line.

    Raises:
        UserError: as said.
    """
    import pyarrow  # Only where Parquet files are read.

    try:
        yield
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # Names may be no text.
        raise UserError(
            f"{what} is damaged or no Parquet file ({in_one_line(error, 100)})"
        ) from None


READERS: Mapping[str, Callable[[Path, str], dict[str, Column]]] = {
    "csv": read_csv,
    "parquet": read_parquet,
}
"""What reads a file, by the prefix of `config.dataset` and the suffix in a folder."""
