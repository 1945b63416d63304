"""What each column of a table is taken for: what somebody has said of it, else by its values."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ensemble.config.builtin import COLUMN_TYPES
from ensemble.data.labels import are_classes
from ensemble.data.tables import read_table
from ensemble.data.tables.raw_columns import Column, Columns
from ensemble.errors import InputError, quoted, shown
from ensemble.notes import note

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
_TRUTHS = {"true"}, {"false"}, {"true", "false"}
_CODE = re.compile(r"0.")  # Of 007.
_NAMED_ID = re.compile(r"(^|[_ .-])(id|ID|Id)$|[a-z](ID|Id)$")
_FEWEST_EQUAL = 10
"""Expected equal pairs of meaningless numbers: by chance there is none once in 20,000 times."""


def decimal_of(columns: Columns, otherwise: str = ".") -> str:
    """The decimal mark of the texts of a file."""
    texts = {name: column.values for name, column in columns.items() if not column.kind}
    return read_table.decimal_mark(texts, otherwise)


def typed(columns: Columns, chosen: Mapping[str, str], decimal: str = "") -> dict[str, Column]:
    """Columns as what they are taken for; what was left out, or may be wrong, is noted.

    Args:
        columns: that there are.
        chosen: kinds that somebody has chosen, such as `category`, `date:%d.%m.%Y` or `drop:WHY`.
        decimal: the decimal mark of the file; empty if it does not show one.

    Raises:
        InputError: a chosen column is not there, or one holds different things.
    """
    if absent := [name for name in chosen if name not in columns]:
        raise InputError(
            f"config.column_types or config.split_by names {quoted(absent)}, and the table has "
            f"{quoted([*columns], 12)}"
        )
    found = {}
    for name, column in columns.items():
        if name in chosen:
            kind, _, form = chosen[name].partition(":")
            form = form or "config.column_types" * (kind == "drop")
            found[name] = as_kind(column, name, kind, form, decimal)
            continue
        one = found[name] = infer(column, name, decimal)
        if one.kind == "number":
            _note_number(name, () if column.kind or decimal else column.values, one.values)
        if one.kind == "category" and one.detail:
            note(f"Column {shown(repr(name))} {one.detail}.")
    texts = [f"{name} ({one.detail})" for name, one in found.items() if _TEXTS in one.detail]
    if texts:
        note(
            f"Columns are left out whose texts name rows, or are free text: {shown(texts[0])}"
            f"{f' and {len(texts) - 1} more' if texts[1:] else ''}; config.column_types keeps "
            "them, as by 'name=category'."
        )
    return found


_TEXTS = "different texts"


def as_kind(column: Column, name: str, kind: str, form: str = "", decimal: str = ".") -> Column:
    """A column as one of a kind, whose texts are written in a form.

    Raises:
        InputError: a value is not of the kind.
    """
    if kind == "drop":
        return Column(column.values, kind, form)
    if kind == "category":
        return Column(column.texts(), kind, form)
    one = {"name": name, "kind": kind, "form": form}
    try:
        return Column(read_table.parse(column.values, one, decimal), kind, form)
    except ValueError as error:
        raise InputError(
            f"{shown(str(error))}; correct it, or set config.na_values or "
            f"config.column_types='{name}=category'"
        ) from None


def infer(column: Column, name: str, decimal: str = ".") -> Column:
    """A column as what it is taken for, where nobody says it.

    Its detail says of one that is left out why; of dates the form of texts, empty for ISO 8601; and
    of categories which dates they may be.

    Args:
        column: any.
        name: of it.
        decimal: the decimal mark of its file.

    Raises:
        InputError: most of its values are numbers or dates, and others are not.
    """
    if column.kind in COLUMN_TYPES:
        return column
    counts = collections.Counter(column.values.tolist())
    del counts[""]
    if not counts:
        return Column(column.values, "drop", "all values are missing")
    # Of a frame a text is a text, and no number or missing value.
    texts = [text for text in counts if column.kind or text.lower() not in read_table.WORDS]
    if not column.kind and {text.lower() for text in texts[:_FEW]} in _TRUTHS:
        return as_kind(column, name, "boolean")
    forms = _date_forms(texts)
    kinds = [("date", form) for form in forms if len(forms) == 1]
    if not (column.kind or (all(map(str.isdigit, texts)) and any(map(_CODE.match, texts)))):
        kinds = [("number", ""), *kinds]
    for kind, form in kinds:
        try:
            return as_kind(column, name, kind, form, decimal)
        except InputError:
            bad = [text for text in texts if not read_table.is_read(text, kind, form, decimal)]
            if 0 < sum(map(counts.__getitem__, bad)) < sum(map(counts.__getitem__, texts)) / 2:
                raise
    ways = " or ".join(repr(f"{name}=date:{form}") for form in forms[:3])
    doubt = f"may hold dates: set config.column_types={ways}" if forms[1:] else ""
    if len(counts) > max(_FEW, counts.total() / 2):
        why = f"{len(counts)} {_TEXTS} in {counts.total()} rows"
        return Column(column.values, "drop", f"{why}; it {doubt}" if doubt else why)
    return Column(column.values, "category", doubt)


def _date_forms(texts: Sequence[str]) -> list[str]:
    """Forms, as of `strptime`, in which most texts are dates; one of those that say the same."""
    some = texts[:_MOST_TEXTS]
    like_dates = [text for text in some if _DATE.fullmatch(text)]  # strptime is slow.
    if len(like_dates) <= len(some) / 2:
        return []
    found: dict[tuple[float, ...], str] = {}
    for form in _FORMS:
        able = [text for text in like_dates if read_table.is_read(text, "date", form)]
        found.setdefault(tuple(read_table.read(able, "date", form)), form)
    most = max(map(len, found))
    return [form for dates, form in found.items() if len(dates) == most > len(some) / 2]


def _note_number(name: str, texts: Iterable[str], values: np.ndarray) -> None:
    """Notes a column that is learned as a number, and may be an id, or other numbers.

    Whole numbers of a range that is so narrow that some rows would have equal ones by chance are
    ids if all are different, and others are if the column is named so.

    Args:
        name: of the column.
        texts: of a file that does not show its decimal mark; else none.
        values: of the numbers.
    """
    why = "is named as ids are" if _NAMED_ID.search(name) else ""
    size = len(values)
    with np.errstate(invalid="ignore"):
        is_whole = (values % 1 == 0).all()
        is_narrow = size * (size - 1) / 2 > _FEWEST_EQUAL * (np.ptp(values) + 1)
    if is_narrow and len(np.unique(values)) == size:
        why = f"has another whole number in each of {size:,} rows, as ids have"
    if is_whole and why:
        note(
            f"Column {shown(repr(name))} {why}, and is learned: "
            f"config.column_types={shown(repr(f'{name}=drop'))} leaves it out, "
            f"{shown(repr(f'{name}=number'))} keeps it without this note."
        )
    marked = [one for one in texts if ("." in one or "," in one) and one.lower() != "n.a."]
    with contextlib.suppress(ValueError, IndexError):  # One mark alone suits, or there is none.
        point, comma = (read_table.numbers(marked, mark)[0] for mark in ".,")
        note(
            f"Column {shown(repr(name))} holds {marked[0]!r}, which is taken for {point:.15g}, and "
            f"may be {comma:.15g}: set config.column_types={shown(repr(f'{name}=number:,'))} if a "
            f"comma is the decimal mark, {shown(repr(f'{name}=number:.'))} if it is not."
        )


# The column to learn.


def kind_of_target(column: Column, name: str, decimal: str = ".") -> str:
    """Whether a column holds `labels` of classes or `targets`, numbers.

    Whole numbers of few different values are classes.
    """
    found = infer(column, name, decimal)
    if found.kind != "number":
        return "labels"
    return "labels" if are_classes(found.values[~np.isnan(found.values)]) else "targets"


def target_values(column: Column, name: str, kind: str, decimal: str = ".") -> np.ndarray:
    """Targets [N] of a column, float64, or labels, numbers or texts.

    Raises:
        InputError: some are missing, or no numbers where they must be.
    """
    if kind == "targets":
        found = as_kind(column, name, "number", "", decimal)
    else:
        found = infer(column, name, decimal)
    values = found.values
    texts = column.texts()
    is_missing = np.isnan(values) if found.kind == "number" else texts == ""
    if is_missing.any():
        raise InputError(
            f"the target {shown(repr(name))} is missing in {is_missing.sum()} of {len(column)} "
            f"rows, first in row {is_missing.argmax() + 1}: remove these rows"
        )
    if found.kind == "number":
        return values
    words = [text for text in dict.fromkeys(texts) if text.lower() in read_table.WORDS]
    if words and not column.kind:
        note(
            f"The target {shown(repr(name))} has the class {words[0]!r}: "
            f"config.na_values={words[0]!r} makes it a missing value."
        )
    return texts.astype(str)
