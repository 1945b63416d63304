"""What each column of a table is taken for: what somebody has said of it, else by its values."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ensemble.config.builtin import COLUMN_TYPES
from ensemble.data.labels import are_classes
from ensemble.data.tables import read_table
from ensemble.data.tables.raw_columns import Column, Columns, check_whole, named
from ensemble.errors import InputError, shown
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
_CODE = re.compile(r"0.")  # Of 007.
_DOUBT = "may hold dates"


def typed(columns: Columns, chosen: Mapping[str, str], decimal: str = "") -> dict[str, Column]:
    """Columns as what they are taken for; what was left out, or may be wrong, is noted.

    Args:
        columns: that there are.
        chosen: kinds that somebody has chosen, such as `category`, `date:%d.%m.%Y` or `drop:WHY`.
        decimal: the decimal mark of the file; empty if it does not show one.

    Raises:
        InputError: a chosen column is not there, or one holds different things.
    """
    for name in chosen:
        named(columns, name, "the table", "config.column_types or config.split_by names")
    found = {}
    for name, column in columns.items():
        kind, _, form = chosen.get(name, "").partition(":")
        if kind:
            form = form or "config.column_types" * (kind == "drop")
            found[name] = as_kind(column, name, kind, form, decimal)
            continue
        one = found[name] = infer(column, name, decimal)
        if one.kind == "number" and not (column.kind or decimal):
            _note_mark(name, column.values)
        elif _DOUBT in one.detail:
            note(f"Column {shown(repr(name))}: {one.detail}.")
    return found


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
    if not column.kind and texts and {text.lower() for text in texts[:_FEW]} <= {"true", "false"}:
        return as_kind(column, name, "boolean")
    forms = _date_forms(texts)
    kinds = [("date", forms[0])] if len(forms) == 1 else []
    if not (column.kind or (all(map(str.isdigit, texts)) and any(map(_CODE.match, texts)))):
        kinds.insert(0, ("number", ""))
    for kind, form in kinds:
        try:
            return as_kind(column, name, kind, form, decimal)
        except InputError:
            good = [text for text in texts if read_table.is_read(text, kind, form, decimal)]
            if len(texts) / 2 < len(good) < len(texts):
                raise
    detail = ""
    if forms:
        ways = " or ".join(repr(f"{name}=date:{form}") for form in forms[:3])
        detail = f"{_DOUBT}: set config.column_types={ways}"
    if len(counts) <= max(_FEW, counts.total() / 2):
        return Column(column.values, "category", detail)
    why = f"{len(counts)} different texts in {counts.total()} rows"
    return Column(column.values, "drop", f"{why}; {detail}" if detail else why)


def _date_forms(texts: Sequence[str]) -> list[str]:
    """Forms, as of `strptime`, in which most texts are dates; one of those that say the same."""
    some = texts[:_MOST_TEXTS]
    like_dates = [text for text in some if _DATE.fullmatch(text)]  # strptime is slow.
    found: dict[tuple[float, ...], str] = {}
    for form in _FORMS if len(like_dates) > len(some) / 2 else ():
        able = [text for text in like_dates if read_table.is_read(text, "date", form)]
        found.setdefault(tuple(read_table.read(able, "date", form)), form)
    most = max(map(len, found), default=0)
    return [form for dates, form in found.items() if len(dates) == most > len(some) / 2]


def _note_mark(name: str, texts: NDArray) -> None:
    """Notes a column of numbers, of a file that does not show its decimal mark, that may be others.

    Args:
        name: of the column.
        texts: of the numbers.
    """
    marked = [one for one in texts if ("." in one or "," in one) and one.lower() != "n.a."]
    with contextlib.suppress(ValueError, IndexError):  # One mark alone suits, or there is none.
        point, comma = (read_table.numbers(marked, mark)[0] for mark in ".,")
        keys = [f"config.column_types={shown(repr(f'{name}=number:{mark}'))}" for mark in ",."]
        note(
            f"Column {shown(repr(name))} holds {marked[0]!r}, which is taken for {point:.15g}, and "
            f"may be {comma:.15g}: set {keys[0]} if a comma is the decimal mark, {keys[1]} if not."
        )


# The column to learn.


def kind_of_target(column: Column, name: str, decimal: str = ".") -> str:
    """Whether a column holds `labels` of classes or `targets`, numbers.

    Whole numbers of few different values are classes.
    """
    found = infer(column, name, decimal)
    is_number = found.kind == "number" and not are_classes(found.values[~np.isnan(found.values)])
    return "targets" if is_number else "labels"


def target_values(column: Column, name: str, kind: str, decimal: str = ".") -> NDArray:
    """Targets [N] of a column, float64, or labels, numbers or texts.

    Raises:
        InputError: some are missing, or no numbers where they must be.
    """
    if kind == "targets":
        found = as_kind(column, name, "number", "", decimal)
    else:
        found = infer(column, name, decimal)
    is_number = found.kind == "number"
    values = found.values if is_number else column.texts().astype(str)
    is_missing = np.isnan(values) if is_number else values == ""
    check_whole(is_missing, f"the target {shown(repr(name))}")
    texts = () if is_number or column.kind else np.unique(values).tolist()
    if words := [one for one in texts if one.lower() in read_table.WORDS]:
        note(
            f"The target {shown(repr(name))} has the class {words[0]!r}: "
            f"config.na_values={words[0]!r} makes it a missing value."
        )
    return values
