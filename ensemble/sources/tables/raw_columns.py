"""Raw columns of a table, as files and data frames hold them: their kinds, and the one to learn."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.sources.labels import are_classes
from ensemble.sources.tables import read_table
from ensemble.storage.table_schema import KINDS

_MOST = 0.5
"""Share of values that says what a column is; of texts that may differ: beyond, they name rows, or
are free text."""
_LONGEST = 40  # Characters of a text in a message.
_FEW = 20  # Different texts that are always categories.


@dataclasses.dataclass(frozen=True)
class Column:
    """A raw column.

    Attributes:
        values: [N] float64 with NaN where a value is missing, of truth values 0 and 1, of dates
            days since 1970; or [N] texts, in which `read_table.MISSING` are missing.
        kind: of `KINDS`, where the column's type says it; empty for texts of a file.
    """

    values: np.ndarray
    kind: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, rows: np.ndarray | slice) -> "Column":
        """Some of its rows."""
        return Column(self.values[rows], self.kind)

    def without(self, missing: Sequence[str]) -> "Column":
        """The same with gaps in place of values that stand for one, as of `config.na_values`."""
        values = read_table.blank(self.values, missing, self.kind)
        return Column(np.array(values, self.values.dtype), self.kind)

    def texts(self) -> np.ndarray:
        """[N] texts, empty where a value is missing; whole numbers have no decimal point."""
        if self.values.dtype.kind != "f":
            missing = read_table.MISSING
            texts = ["" if text.lower() in missing else text for text in self.values]
        else:
            texts = ["" if np.isnan(one) else f"{one:.15g}" for one in self.values.tolist()]
        return np.array(texts, object)


Columns = Mapping[str, Column]
"""Columns of one length by their names."""


def num_rows(columns: Columns) -> int:
    """N."""
    return len(next(iter(columns.values())))


def named(names: Sequence[str], most: int = 6) -> str:
    """Names in a line, of which it shows the first."""
    return ", ".join(shown(repr(one[:_LONGEST])) for one in names[:most]) + ", ..." * (
        len(names) > most
    )


def kind_of(column: Column, name: str, date_format: str = "") -> tuple[str, str]:
    """What a column is taken for, where nobody says it.

    Args:
        column: any.
        name: of it.
        date_format: of dates, beside ISO 8601.

    Returns:
        The kind, of `KINDS`; of `drop` the reason, and of `date` the form of texts, empty for ISO
        8601.

    Raises:
        UserError: most of its values are numbers, truth values or dates, and others are not.
    """
    if column.kind in KINDS:
        return column.kind, ""
    if not column.kind and _are_numbers(column):
        return "number", ""
    counts = collections.Counter(text for text in column.texts() if text)
    num_texts = counts.total()
    if not counts:
        return "drop", "all values are missing"
    kinds = [("number", ""), ("boolean", "")] if column.kind != "text" else []
    dates = [("date", form) for form in dict.fromkeys((date_format, ""))]
    for kind, form in kinds + dates:
        bad = [text for text in counts if not parses(kind, text, form)]
        if not bad:
            return kind, form
        if sum(counts[text] for text in bad) < (1 - _MOST) * num_texts:
            row = column.texts().tolist().index(bad[0]) + 1
            raise UserError(
                f"column {shown(repr(name))} holds {named(bad[:1])} in row {row}, and a "
                f"{kind} in most others; correct it, set config.na_values={bad[0][:_LONGEST]!r} if "
                f"it stands for a missing value, or set config.columns='{name}=category'"
            )
    if len(counts) > max(_FEW, _MOST * num_texts):
        return "drop", f"{len(counts)} different texts in {num_texts} rows"
    return "category", ""


def _are_numbers(column: Column) -> bool:
    """Whether all texts are numbers, or missing: found without counting them."""
    try:
        return not np.isnan(read_table.parse(column.values, "number", "")).all()
    except ValueError:
        return False


def parses(kind: str, text: str, form: str = "") -> bool:
    """Whether a text of a file is of this kind; of truth values only the two words are."""
    if kind == "boolean":
        return text.lower() in ("true", "false")
    try:
        read_table.days(text, form) if form else read_table.PARSE[kind](text)
    except (ValueError, OverflowError):
        return False
    return True


# The column to learn.

MAX_CLASS = 2.0**53
"""Below it every whole number is one of float64, and none is taken for another."""


def kind_of_target(column: Column, name: str) -> str:
    """Whether a column holds `labels` of classes or `targets`, numbers.

    Whole numbers of few different values are classes.

    Raises:
        UserError: it holds infinite numbers.
    """
    kind, _ = kind_of(column, name)
    if kind != "number":
        return "labels"
    values = _numbers(column, name)
    return "labels" if are_classes(values[~np.isnan(values)]) else "targets"


def target_values(column: Column, name: str, kind: str) -> np.ndarray:
    """Targets [N] of a column, float64, or labels, whole numbers or texts.

    Raises:
        UserError: some are missing, or no numbers where they must be.
    """
    check_none_is_missing(column, name)
    if kind == "targets":
        try:
            return read_table.parse(column.values, "number", name)
        except ValueError as error:
            raise UserError(
                f"the target must be numbers: {shown(str(error))}; set "
                "config.likelihood='categorical' for classes"
            ) from None
    if kind_of(column, name)[0] == "number":
        values = _numbers(column, name)
        is_whole = (values == np.floor(values)) & (np.abs(values) < MAX_CLASS)
        if not is_whole.all():
            raise UserError(
                f"the target {shown(repr(name))} holds {values[~is_whole][0]:g}, which is no "
                "class: set config.likelihood='gaussian' to learn numbers"
            )
        return values.astype(np.int64)
    return column.texts().astype(str)


def check_none_is_missing(column: Column, name: str) -> None:
    """Checks that each row has a target.

    Raises:
        UserError: one has none.
    """
    is_missing = column.texts() == ""
    if is_missing.any():
        raise UserError(
            f"the target {shown(repr(name))} is missing in {is_missing.sum()} of {len(column)} "
            f"rows, first in row {is_missing.argmax() + 1}: remove these rows"
        )


def _numbers(column: Column, name: str) -> np.ndarray:
    """The values [N] of a column of numbers, float64, NaN where one is missing."""
    try:
        return read_table.parse(column.values, "number", name)
    except ValueError as error:  # They are infinite.
        raise UserError(
            f"the target must be finite: {shown(str(error))}; correct or remove these rows"
        ) from None
