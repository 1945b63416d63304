"""Files of tables: CSV and Parquet, one, or a folder of splits or of parts."""

import contextlib
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.data.own_arrays import local_path
from ensemble.data.splitting import POOL, split_of
from ensemble.data.tables import read_table
from ensemble.data.tables.raw_columns import Column, of_frame
from ensemble.errors import InputError, in_one_line, quoted
from ensemble.notes import note
from ensemble.storage.memory import max_bytes


def read_files(name: str) -> dict[str, dict[str, Column]]:
    """Reads a table's file, or those of a folder: of splits, or parts of one table.

    Args:
        name: such as `csv:PATH`, whose prefix is the files' form, and their suffix in a folder.

    Returns:
        Columns by the splits that files or folders are named after; else of `POOL` alone.

    Raises:
        InputError: a file cannot be read, or is no such table.
    """
    form = name.partition(":")[0]
    return {
        part: _joined({str(one): of_frame(_read(form, one, name), name) for one in files})
        for part, files in _files_of(name).items()
    }


def _files_of(name: str) -> dict[str, list[Path]]:
    """The files of a table, as `read_files` reads them.

    Raises:
        InputError: there are none, or their names are of splits in part.
    """
    form, _, path = name.partition(":")
    place = local_path(path)
    if place.is_file():
        return {POOL: [place]}
    found = dict[str, list[Path]]()
    for file in sorted([*place.glob("*"), *place.glob("*/*")]):
        first = Path(file.relative_to(place).parts[0])
        if file.suffix.lower() == f".{form}" and not first.name.startswith((".", "_")):
            found.setdefault(split_of(first.stem) or POOL, []).append(file)
    if not found:
        raise InputError(f"{name}: there is no file {place.absolute()}, and no *.{form} in it")
    if found.keys() != {POOL} and (POOL in found or "train" not in found):
        names = [one.name for one in found.get(POOL, next(iter(found.values())))]
        raise InputError(
            f"{name} holds {quoted(names)}; name all files after splits, with a train.{form}, or "
            "none, as parts of one table"
        )
    return found


def rows_of_files(name: str) -> dict[str, Column]:
    """Reads the rows of a table's files that are to be predicted: to test, else all.

    Raises:
        InputError: as of `read_files`.
    """
    parts = read_files(name)
    return next(parts[part] for part in ("test", POOL, "train") if part in parts)


def read_if_table(
    paths: Sequence[str], keep: Sequence[str] = ()
) -> tuple[Mapping[str, Any], dict[str, list[str | None]]] | None:
    """Reads a file, where it is one of a table by its name; else None.

    Args:
        paths: of the file, alone.
        keep: names of columns whose texts are kept as they are.

    Returns:
        Columns as `TableForm.encode` takes them, and texts to keep, by column, None where a value
        of a Parquet file is missing.

    Raises:
        InputError: it cannot be read, there are others beside it, or a column is not there.
    """
    path = paths[0]
    form = Path(paths[0]).suffix.lower().removeprefix(".")
    if form not in ("csv", "parquet"):
        return None
    if paths[1:]:
        raise InputError(f"{path} is a table: give it alone")
    table = _read(form, local_path(path), path)
    if absent := [name for name in keep if name not in table]:
        raise InputError(
            f"--id_columns={absent[0]} is no column of {path}, which has {quoted([*table], 20)}"
        )
    with reading(path):
        kept = {
            name: one.values.tolist() if isinstance(one, Column) else one.cast("string").to_pylist()
            for name, one in table.items()
            if name in keep
        }
    return table, kept


def _joined(tables: Mapping[str, Mapping[str, Column]]) -> dict[str, Column]:
    """Joins tables of the same columns, one below the other.

    Raises:
        InputError: their columns differ.
    """
    first = next(iter(tables.values()))
    for what, table in tables.items():
        if absent := [name for name in first if name not in table]:
            raise InputError(f"{what} lacks {quoted(absent)}, which other files of it have")
    joined = {}
    for name, one in first.items():
        parts = [table[name] for table in tables.values()]
        is_one = all(part.kind == one.kind for part in parts)
        values = [part.values if is_one else part.texts() for part in parts]
        joined[name] = Column(np.concatenate(values), one.kind if is_one else "text")
    return joined


def _read(form: str, file: Path, name: str) -> Mapping[str, Any]:
    """The columns of a file: of CSV, whose texts may be anything, of no kind; else of Arrow."""
    what = f"{name}: {file.name}" if file.name not in name else name
    with reading(what):
        # As texts a file takes some fifteen times as much.
        if file.stat().st_size > max_bytes():
            raise InputError(
                f"{what} is larger than the {max_bytes():,} bytes allowed here; use fewer rows, or "
                "arrays in a folder of npy files, which may be larger than the memory"
            )
        if form == "parquet":
            table = open_parquet(file, what).read()
            columns = zip(table.column_names, table.columns, strict=True)
            return {name: one for name, one in columns if not name.startswith("__index_level_")}
        names, texts, (mark, encoding) = read_table.parse_csv(file.read_bytes())
    check_header(names, f"{what} (separator {mark!r})")
    if encoding == "cp1252":
        note(
            f"{what} is not UTF-8, and is read as Windows-1252: save it in UTF-8 if that is wrong."
        )
    if "" in names:  # As an index of pandas has it.
        note(f"{what}: columns without a name are left out.")
    pairs = zip(names, texts, strict=True)
    return {name: Column(np.array(values, object)) for name, values in pairs if name}


def check_header(names: Sequence[str], what: str) -> None:
    """Refuses a first line of a text file that has no names of columns, or one of them twice.

    Raises:
        InputError: as said.
    """
    if not any(names):
        raise InputError(f"{what} is empty; its first line must have the names of columns")
    values = [name for name in names if read_table.is_read(name, "number")]
    if len(values) > len(names) / 2:
        raise InputError(
            f"{what} has no header: its first line holds {quoted(values, 3)}; write the names of "
            "the columns there"
        )
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise InputError(f"{what} has two columns of the name {quoted(twice[:1])}; rename one")


def open_parquet(file: Path, what: str) -> Any:
    """Opens a Parquet file as a `pyarrow.parquet.ParquetFile`.

    Raises:
        InputError: it is no such file.
    """
    import pyarrow.parquet  # Only where Parquet files are read.

    with reading(what):
        # Memory maps would let a file that changes during the read crash the process.
        return pyarrow.parquet.ParquetFile(file)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns what readers of files raise into one line.

    Raises:
        InputError: as said.
    """
    import pyarrow  # Only where tables are read.

    try:
        yield
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, csv.Error, ValueError) as error:
        raise InputError(f"{what} cannot be read: {in_one_line(error, 200)}; correct it") from None
