"""What each column of a table is taken for: what somebody has said of it, else by its values."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.notes import note
from ensemble.sources.tables import read_table
from ensemble.sources.tables.raw_columns import Column, Columns, kind_of, named, parses
from ensemble.storage.table_schema import KINDS

# Dates in other forms than ISO 8601.
_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
_FORM = re.compile(r"(\d{1,4}|[^\W\d]{3,9})[./ -](\d{1,2}|[^\W\d]{3,9}),?[./ -]\d{1,4}( \d.*)?")
_MOST_TEXTS = 200  # Different texts that are looked at.


_NAMED_ID = re.compile(r"(^|[_ .-])(id|ID|Id)$|[a-z](ID|Id)$")
FEWEST_EQUAL = 10
"""Expected equal pairs of meaningless numbers: by chance there is none once in 20,000 times."""


def parse_columns(value: Any) -> dict[str, str]:
    """Reads `config.columns`, the kinds of columns that somebody has chosen.

    Args:
        value: None, a mapping from names to `KINDS`, or such as 'zip=category, id=drop', or JSON.

    Raises:
        UserError: it is none of these.
    """
    if not value:
        return {}
    found = value
    if isinstance(value, str):
        try:
            parts = [part.rpartition("=") for part in value.split(",")]
            found = {name.strip(): kind.strip() for name, _, kind in parts}
            found = json.loads(value) if value.lstrip().startswith("{") else found
        except ValueError:
            found = None
    if not isinstance(found, Mapping) or not all(
        name and kind in KINDS for name, kind in found.items()
    ):
        raise UserError(
            f"config.columns={value!r} must be kinds of columns, {', '.join(KINDS)}, such as "
            "'zip=category, id=drop'"
        )
    return {str(name): str(kind) for name, kind in found.items()}


def parse_na_values(value: Any) -> tuple[str, ...]:
    """Reads `config.na_values`, in lower case: what stands for a missing value.

    Args:
        value: None, texts with commas between them, or a sequence of texts and numbers, which may
            be JSON.

    Raises:
        UserError: it is none of these.
    """
    if value is None:
        return ()
    parts = value
    if isinstance(value, str):
        try:
            parts = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
        except ValueError:
            parts = None
    parts = parts if isinstance(parts, list | tuple) else [parts]
    if not all(isinstance(one, str) or type(one) in (int, float) for one in parts):
        raise UserError(
            f"config.na_values={value!r} must be what stands for a missing value in a table, such "
            "as 'unknown, -999'"
        )
    texts = (one if isinstance(one, str) else f"{one:.15g}" for one in parts)
    return tuple(dict.fromkeys(text.strip().lower() for text in texts if text.strip()))


def kinds_of(
    columns: Columns,
    chosen: Mapping[str, str],
    aside: Mapping[str, str],
    date_format: str = "",
) -> dict[str, tuple[str, str]]:
    """The kind of each column; of those that are left out the reason, of dates the form.

    Args:
        columns: that there are.
        chosen: kinds that somebody has chosen.
        aside: columns that are no inputs unless they are chosen, with the reason.
        date_format: of texts that are dates, beside ISO 8601.

    Raises:
        UserError: a chosen column is not there, or one holds different things.
    """
    absent = [name for name in chosen if name not in columns]
    if absent:
        raise UserError(
            f"config.columns names {named(absent)}, and the table has {named([*columns], 12)}"
        )
    kinds, are_noted = {}, set[str]()
    for name, column in columns.items():
        if name in chosen:
            is_date = chosen[name] == "date"
            detail = _form_of(column, date_format) if is_date else "config.columns"
            kinds[name] = (chosen[name], detail)
        elif name in aside:
            kinds[name] = ("drop", aside[name])
        else:
            kinds[name] = kind_of(column, name, date_format)
            if _are_texts(column, kinds[name]) and (forms := _likely_forms(column.texts())):
                are_noted.add(name)
                _note_dates(name, column, forms)
    if date_format and not aside and ("date", date_format) not in kinds.values():
        note(f"config.date_format={date_format!r} is the form of no column's texts.")
    texts = [
        f"{name} ({kinds[name][1]})"
        for name in kinds
        if _has_texts(kinds[name]) and name not in are_noted
    ]
    if texts:
        note(
            f"Columns are left out whose texts name rows, or are free text: {shown(texts[0])}"
            f"{f' and {len(texts) - 1} more' if texts[1:] else ''}; config.columns keeps them, as "
            "by 'name=category'."
        )
    return kinds


def note_row_numbers(
    columns: Columns, kinds: Mapping[str, tuple[str, str]], chosen: Mapping[str, str]
) -> None:
    """Notes columns of whole numbers that look like ids, which would be learned as numbers.

    Whole numbers of a range that is so narrow that some rows would have equal ones by chance are
    ids if all are different, and others are if the column is named so.

    Args:
        columns: that are parsed.
        kinds: of `kinds_of`.
        chosen: kinds that somebody has chosen; these columns are not noted.
    """
    for name, column in columns.items():
        if name in chosen or kinds.get(name, ("",))[0] != "number" or len(column.values) < 2:
            continue
        values = np.asarray(column.values, np.float64)
        if not np.isfinite(values).all() or (values % 1 != 0).any():
            continue
        pairs = len(values) * (len(values) - 1) / 2
        is_narrow = pairs / (np.ptp(values) + 1) > FEWEST_EQUAL
        if is_narrow and len(np.unique(values)) == len(values):
            why = f"has another whole number in each of {len(values):,} rows, as ids have"
        elif _NAMED_ID.search(name):
            why = "is named as ids are"
        else:
            continue
        note(
            f"Column {shown(repr(name))} {why}, and is learned: "
            f"config.columns={shown(repr(f'{name}=drop'))} leaves it out, "
            f"{shown(repr(f'{name}=number'))} keeps it without this note."
        )


def _form_of(column: Column, date_format: str) -> str:
    """The form of dates, empty for ISO 8601, of a column that is said to hold dates."""
    is_text = date_format and column.values.dtype.kind != "f"
    texts = column.texts() if is_text else ()
    return date_format if any(parses("date", text, date_format) for text in texts) else ""


def _are_texts(column: Column, kind: tuple[str, str]) -> bool:
    """Whether a column of texts, and not of the type of categories, is taken for these."""
    return column.kind in ("", "text") and (kind[0] == "category" or _has_texts(kind))


def _note_dates(name: str, column: Column, forms: Sequence[str]) -> None:
    first = next(text for text in column.texts() if text and parses("date", text, forms[0]))
    known = " or ".join(map(repr, forms[:3]))
    note(
        f"Column {shown(repr(name))} holds what look like dates, such as {shown(repr(first))}, and "
        f"is not read as dates: set config.date_format={known}, or config.columns="
        f"{shown(repr(f'{name}=category'))}."
    )


def _has_texts(kind: tuple[str, str]) -> bool:
    """Whether a column is left out for its many texts."""
    return kind[0] == "drop" and "different texts" in kind[1]


def parsed(columns: Columns, kinds: Mapping[str, tuple[str, str]]) -> dict[str, Column]:
    """Columns whose numbers, truth values and dates are numbers.

    Raises:
        UserError: a column cannot be of its kind.
    """
    found = {}
    for name, column in columns.items():
        kind, detail = kinds.get(name, ("drop", ""))
        if kind in ("number", "boolean", "date"):
            form = detail if kind == "date" else ""
            try:
                column = Column(read_table.parse(column.values, kind, name, form), kind)
            except ValueError as error:
                other = "config.date_format, " if kind == "date" else ""
                raise UserError(
                    f"{shown(str(error))}; correct it, or set {other}config.na_values or "
                    f"config.columns='{name}=category'"
                ) from None
        found[name] = column
    return found


def _likely_forms(texts: Iterable[str]) -> list[str]:
    """The forms, as of `strptime`, in which most texts are dates; none where they are no dates.

    Args:
        texts: of a column, of which empty ones are missing.
    """
    different = [*dict.fromkeys(text for text in texts if text)][:_MOST_TEXTS]
    like_dates = [text for text in different if _FORM.fullmatch(text)]  # strptime is slow.
    if len(like_dates) <= len(different) / 2:
        return []
    counts = collections.Counter(
        form
        for form in (day + time for day in _DAYS for time in _TIMES)
        for text in like_dates
        if parses("date", text, form)
    )
    best = max(counts.values(), default=0)
    return [form for form in counts if counts[form] == best > len(different) / 2]
