"""Columns of a table: of files, data frames, mappings, rows and arrays, and what each is taken for.

Arrow reads all but CSV files. A column is what somebody has said of it, else what its values are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.config.builtin import COLUMN_TYPES
from ensemble.data.labels import are_classes
from ensemble.data.own_arrays import local_path, reading
from ensemble.data.splitting import POOL, SPLITS, digest_examples, split_of
from ensemble.data.tables import is_table, read_table
from ensemble.errors import InputError, in_one_line, quoted
from ensemble.notes import note
from ensemble.pytrees import ByName
from ensemble.storage.memory import max_bytes

_FEW = 20  # Different texts that are always categories; of more, half the rows may differ.
_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
_FORMS = ("", *(day + time for day in _DAYS for time in _TIMES))  # The first is ISO 8601.
_DATE = re.compile(r"(\d{1,4}|[^\W\d]{3,9})[./ -](\d{1,2}|[^\W\d]{3,9}),?[./ -]\d{1,4}([ T]\d.*)?")
_MOST_TEXTS = 200  # Different texts by which forms of dates are found.
_CODE = re.compile(r"0.")  # Of 007.
_DOUBT = "may hold dates"


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        values: [N] float64 with NaN where a value is missing, of truth values 0 and 1, of dates
            days since 1970; or [N] texts, empty where a value is missing.
        kind: number, boolean, date, category or drop, where it is known; else `text` of texts of a
            frame, and empty of texts of a file.
        detail: why it is left out, or how its texts are written; of texts of a file their decimal
            mark, where the file shows one.
    """

    values: NDArray
    kind: str = ""
    detail: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, rows: NDArray | slice) -> Column:
        """Some of its rows."""
        return replace(self, values=self.values[rows])

    def without(self, missing: Sequence[str]) -> Column:
        """The same with gaps in place of values that stand for one, as of `config.na_values`."""
        values = read_table.blank(self.values, missing, self.kind)
        return replace(self, values=np.asarray(values, self.values.dtype))

    def texts(self) -> NDArray:
        """[N] texts, empty where a value is missing; whole numbers have no decimal point."""
        if self.values.dtype.kind != "f":
            return self.values
        as_text = bool if self.kind == "boolean" else _plain
        texts = ["" if np.isnan(one) else str(as_text(one)) for one in self.values.tolist()]
        return np.array(texts, object)


def _plain(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < read_table.WHOLE else value


Columns = dict[str, Column]
"""Columns of one length by their names."""


def named(columns: Any, name: str, what: str, who: str) -> Any:
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
            f"{what} has no column {name!r}, which {who}; it has "
            f"{quoted([*columns], 20)}: set one of these"
        )
    return columns[name]


def check_whole(values: NDArray, what: str) -> None:
    """Refuses missing values, NaN or empty texts.

    Raises:
        InputError: As said.
    """
    is_missing = np.isnan(values) if values.dtype.kind == "f" else values == ""
    if is_missing.any():
        raise InputError(
            f"{what} is missing in {is_missing.sum()} of {len(is_missing)} rows, first in row "
            f"{is_missing.argmax() + 1}: remove these rows, or fill it in"
        )


def joined(tables: Mapping[str, Columns]) -> Columns:
    """Joins tables with the columns of the first one, one below the other.

    Args:
        tables: By what messages call them.

    Raises:
        InputError: A table lacks a column, or has another kind of it.
    """
    found = {}
    for name in next(iter(tables.values())):
        parts = [named(table, name, what, "other parts have") for what, table in tables.items()]
        kinds = sorted({one.kind for one in parts})
        if kinds[1:] and kinds != ["category", "text"]:
            raise InputError(
                f"column {name!r} holds {kinds[0]}s and {kinds[1]}s in parts of the "
                "table: convert it"
            )
        values = np.concatenate([one.values for one in parts])
        marks = filter(None, (one.detail for one in parts))
        found[name] = Column(values, kinds[-1], next(marks, ""))
    return found


def take_target(data: Any, target: str, what: str) -> tuple[Columns, Column]:
    """Columns of a data frame, and the column to learn.

    Raises:
        InputError: there is no such column.
    """
    columns = of_frame(data, what)
    named(columns, target, what, "config.target names")
    return columns, columns.pop(target)


def of_frame(data: Any, what: str = "the table", needed: Collection[str] | None = None) -> Columns:
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
    columns = {}
    for title, values in pairs:
        name = str(title)
        if name in columns:
            raise InputError(f"{what} has two columns of one name, {name}; rename one")
        if needed is None or name in needed:
            columns[name] = _of_values(values, f"column {title!r}")
    lengths = {len(one) for one in columns.values()}
    if len(lengths) > 1 or 0 in lengths or not (columns or needed):
        raise InputError(
            f"{what} has no rows, no columns, or columns of different lengths, {sorted(lengths)}"
        )
    return columns


def _of_values(values, what: str) -> Column:
    """A column of anything that Arrow takes for a sequence of values."""
    if isinstance(values, Column):
        return values
    # Of tables alone.
    import pyarrow
    from pyarrow import compute, types

    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise InputError(f"{what} holds one value, and no sequence; give a row as [{{...}}]")
    try:
        if hasattr(values, "cat"):  # Of pandas: categories may be of any type, such as intervals.
            values = values.cat.rename_categories(str)
        if not isinstance(values, pyarrow.Array | pyarrow.ChunkedArray):
            values = pyarrow.array(values, from_pandas=True)
        kind = "category" if types.is_dictionary(values.type) else "text"
        if kind == "category":
            values = values.cast(values.type.value_type)
        elif types.is_temporal(values.type) and not types.is_time(values.type):
            times = values.to_numpy(zero_copy_only=False)
            times = times.astype(f"{times.dtype.kind}8[us]")
            days = np.where(np.isnat(times), np.nan, times.astype(np.int64) / 86_400e6)
            return Column(days, "date" if times.dtype.kind == "M" else "number")
        elif not (types.is_binary(values.type) or "string" in str(values.type)):
            with suppress(pyarrow.ArrowInvalid):  # Of whole numbers beyond 2**53.
                found = values.cast("float64").to_numpy(zero_copy_only=False)
                return Column(found, "boolean" if types.is_boolean(values.type) else "number")
        texts = compute.fill_null(compute.utf8_trim_whitespace(values.cast("string")), "")
        return Column(texts.to_numpy(zero_copy_only=False).astype(object), kind)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        names = sorted({type(one).__name__ for one in values} - {"NoneType", "NAType"})
        raise InputError(
            f"{what} holds values that are not of one kind, numbers, dates, truth values or texts "
            f"(types {', '.join(names)}: {in_one_line(error, 100)}); convert it"
        ) from None


def digest_rows(columns: Mapping[str, Column]) -> NDArray:
    """Digests uint64 [N] of rows, by `digest_examples`: equal ones are of equal rows."""
    parts = []
    for name in sorted(columns):
        values = columns[name].values
        if values.dtype.kind != "f":  # Two numbers that are equal where texts are, in every table.
            texts = values.tolist()
            known = {text: blake2b(text.encode(), digest_size=8).digest() for text in {*texts}}
            found = b"".join([known[text] for text in texts])
            values = np.frombuffer(found, np.uint32).astype(np.float64)
        parts.append(values.reshape(len(columns[name]), -1))
    return digest_examples(np.concatenate(parts, axis=1))


# What a column is taken for.


def typed(columns: Columns, chosen: Mapping[str, str]) -> Columns:
    """Columns as what they are taken for; what was left out, or may be wrong, is noted.

    Args:
        columns: that there are.
        chosen: kinds that somebody has chosen, such as `category`, `date:%d.%m.%Y` or `drop:WHY`.

    Raises:
        InputError: a chosen column is not there, or one holds different things.
    """
    for name in chosen:
        named(columns, name, "the table", "config.column_types or config.split_by names")
    found = {}
    for name, column in columns.items():
        kind, _, form = chosen.get(name, "").partition(":")
        if kind:
            found[name] = as_kind(column, name, kind, form)
            continue
        one = found[name] = infer(column, name)
        if one.kind == "number" and not (column.kind or column.detail):
            _note_mark(name, column.values)
        elif _DOUBT in one.detail:
            note(f"Column {name!r}: {one.detail}.")
    return found


def as_kind(column: Column, name: str, kind: str, form: str = "") -> Column:
    """A column as one of a kind, whose texts are written in a form.

    Raises:
        InputError: a value is not of the kind.
    """
    if kind == "drop":
        return Column(column.values, kind, form or "config.column_types")
    if kind == "category":
        return Column(column.texts(), kind, form)
    one = {"name": name, "kind": kind, "form": form}
    try:
        return Column(read_table.parse(column.values, one, column.detail), kind, form)
    except ValueError as error:
        raise InputError(
            f"{error}; correct it, or set config.na_values or config.column_types='{name}=category'"
        ) from None


def infer(column: Column, name: str) -> Column:
    """A column as what it is taken for, where nobody says it.

    Its detail says of one that is left out why; of dates the form of texts, empty for ISO 8601; and
    of categories which dates they may be.

    Raises:
        InputError: most of its values are numbers or dates, and others are not.
    """
    if column.kind in COLUMN_TYPES:
        return column
    counts = Counter(column.values.tolist())
    del counts[""]
    # Of a frame a text is a text, and no number or missing value.
    is_text = bool(column.kind)
    texts = [text for text in counts if is_text or text.lower() not in read_table.WORDS]
    if not is_text and texts and {text.lower() for text in texts[:_FEW]} <= {"true", "false"}:
        return as_kind(column, name, "boolean")
    forms = _date_forms(texts)
    kinds = [("date", forms[0])] if len(forms) == 1 else []
    if not (is_text or (all(map(str.isdigit, texts)) and any(map(_CODE.match, texts)))):
        kinds.insert(0, ("number", ""))
    for how in kinds:
        try:
            return as_kind(column, name, *how)
        except InputError:
            good = sum(read_table.is_read(text, *how, column.detail) for text in texts)
            if len(texts) / 2 < good < len(texts):
                raise
    detail = ""
    if forms:
        ways = " or ".join(repr(f"{name}=date:{form}") for form in forms[:3])
        detail = f"{_DOUBT}: set config.column_types={ways}"
    if len(counts) <= max(_FEW, counts.total() / 2):
        return Column(column.values, "category", detail)
    why = f"{len(counts)} different texts in {counts.total()} rows"
    return Column(column.values, "drop", "; ".join(filter(None, (why, detail))))


def _date_forms(texts: Sequence[str]) -> list[str]:
    """Forms, as of `strptime`, in which most texts are dates; one of those that say the same."""
    some = texts[:_MOST_TEXTS]
    like_dates = [text for text in some if _DATE.fullmatch(text)]  # strptime is slow.
    found: Any = {}
    for form in _FORMS:
        able = [text for text in like_dates if read_table.is_read(text, "date", form)]
        found.setdefault(tuple(read_table.read(able, "date", form)), form)
    most = max(map(len, found), default=0)
    return [form for dates, form in found.items() if len(dates) == most > len(some) / 2]


def _note_mark(name: str, texts: NDArray) -> None:
    """Notes a column of numbers, of a file that shows no decimal mark, whose mark may be either."""
    marked = [one for one in texts if ("." in one or "," in one) and one.lower() != "n.a."]
    with suppress(ValueError, IndexError):  # One mark alone suits, or there is none.
        point, comma = (read_table.numbers(marked, mark)[0] for mark in ".,")
        note(
            f"Column {name!r} holds {marked[0]!r}, which is taken for {point:.15g}, and may be "
            f"{comma:.15g}: set config.column_types={name + '=number:,'!r} if a comma is the "
            "decimal mark, or number:. if a point is."
        )


def kind_of_target(column: Column, name: str) -> str:
    """Whether a column holds `labels` of classes or `targets`, numbers.

    Whole numbers of few different values are classes.
    """
    found = infer(column, name)
    is_number = found.kind == "number" and not are_classes(found.values[~np.isnan(found.values)])
    return "targets" if is_number else "labels"


def target_values(column: Column, name: str, kind: str) -> NDArray:
    """Targets [N] of a column, float64, or labels, numbers or texts.

    Raises:
        InputError: some are missing, or no numbers where they must be.
    """
    found = as_kind(column, name, "number") if kind == "targets" else infer(column, name)
    is_number = found.kind == "number"
    values = found.values if is_number else column.texts().astype(str)
    check_whole(values, f"the target {name!r}")
    texts = () if is_number or column.kind else np.unique(values).tolist()
    if words := [one for one in texts if one.lower() in read_table.WORDS]:
        note(
            f"The target {name!r} has the class {words[0]!r}: "
            f"config.na_values={words[0]!r} makes it a missing value."
        )
    return values


# Files: CSV and Parquet, one, or a folder of splits or of parts.


def read_files(name: str) -> dict[str, Columns]:
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
    files = {place: POOL} if place.is_file() else {}
    for file in sorted([*place.glob("*"), *place.glob("*/*")]):
        first = Path(file.relative_to(place).parts[0])
        if file.suffix.lower() == f".{form}" and not first.name.startswith((".", "_")):
            files[file] = split_of(first.stem) or POOL
    parts = {*files.values()}
    if not parts:
        raise InputError(f"{name}: there is no file {place.absolute()}, and no *.{form} in it")
    if parts != {POOL} and (POOL in parts or "train" not in parts):
        raise InputError(
            f"{name} holds {quoted([one.name for one in files])}; name all files after splits, "
            f"with a train.{form}, or none, as parts of one table"
        )
    tables = {file: of_frame(_read(form, file), name) for file in files}
    return {
        part: joined({str(file): tables[file] for file, own in files.items() if own == part})
        for part in (POOL, *SPLITS)
        if part in parts
    }


def read_if_table(paths: Sequence[str], keep: Sequence[str] = ()) -> tuple[ByName, ByName] | None:
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
    table = _read(form, local_path(path))
    kept = {}
    for name in keep:
        one = named(table, name, path, f"--id_columns={name} names")
        with reading(path):
            is_texts = isinstance(one, Column)
            kept[name] = one.values.tolist() if is_texts else one.cast("string").to_pylist()
    return table, kept


def _read(form: str, file: Path) -> ByName:
    """The columns of a file: of CSV, whose texts may be anything, of no kind; else of Arrow."""
    what = f"{form}:{file}"
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
        texts, encoding = read_table.parse_csv(file.read_bytes())
    if encoding == "cp1252":
        note(
            f"{what} is not UTF-8, and is read as Windows-1252: save it in UTF-8 if that is wrong."
        )
    mark = read_table.decimal_mark(texts, "")
    return {title: Column(np.array(some, object), "", mark) for title, some in texts.items()}
