"""Files of tables: CSV and Parquet, one, or a folder of splits or of parts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.data.own_arrays import local_path, reading
from ensemble.data.splitting import POOL, SPLITS, split_of
from ensemble.data.tables import read_table
from ensemble.data.tables.raw_columns import Column, joined, named, of_frame
from ensemble.errors import InputError, quoted
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
    form, _, path = name.partition(":")
    place = local_path(path)
    found: dict[str, list[Path]] = {POOL: [place]} if place.is_file() else {}
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
    return {
        part: joined({str(one): of_frame(_read(form, one, name), name) for one in found[part]})
        for part in (POOL, *SPLITS)
        if part in found
    }


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
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in ("csv", "parquet"):
        return None
    if paths[1:]:
        raise InputError(f"{path} is a table: give it alone")
    table = _read(form, local_path(path), path)
    kept = {name: named(table, name, path, f"--id_columns={name} names") for name in keep}
    with reading(path):
        return table, {
            name: one.values.tolist() if isinstance(one, Column) else one.cast("string").to_pylist()
            for name, one in kept.items()
        }


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
            import pyarrow.parquet  # Only where Parquet files are read.

            # Memory maps would let a file that changes during the read crash the process.
            table = pyarrow.parquet.ParquetFile(file).read()
            columns = zip(table.column_names, table.columns, strict=True)
            return {title: one for title, one in columns if not title.startswith("__index_level_")}
        names, texts, (mark, encoding) = read_table.parse_csv(file.read_bytes())
    values = [title for title in names if read_table.is_read(title, "number")]
    twice = [title for title in names if title and names.count(title) > 1]
    wrong = f"has two columns of the name {quoted(twice[:1])}; rename one" if twice else ""
    if len(values) > len(names) / 2:
        wrong = f"has no header: its first line holds {quoted(values, 3)}; name the columns there"
    if not any(names):
        wrong = "is empty; its first line must have the names of columns"
    if wrong:
        raise InputError(f"{what} (separator {mark!r}) {wrong}")
    if encoding == "cp1252":
        note(
            f"{what} is not UTF-8, and is read as Windows-1252: save it in UTF-8 if that is wrong."
        )
    # A column without a name is as an index of pandas has it.
    pairs = zip(names, texts, strict=True)
    return {title: Column(np.array(values, object)) for title, values in pairs if title}
