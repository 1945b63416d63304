"""How columns become inputs: fitted to training rows, kept as JSON, applied by `read_table`."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.tables import read_table
from ensemble.data.tables.raw_columns import Column, Columns, of_frame
from ensemble.errors import InputError, listed, shown
from ensemble.notes import note

FORMAT = 3
"""Version of the JSON."""
PERIODS = {365.2425: "day of the year", 7.0: "day of the week", 1.0: "time of the day"}
"""What dates share after so many days."""
MOST_CATEGORIES = 32
"""Inputs that a column of categories becomes, that of all rare ones among them."""
_LEAST = 3  # Rows of a category that has a column of its own.
_PARTS = 7  # Of a period, in more than one of which dates must lie.
_MISSING = "(missing)"


@dataclasses.dataclass(frozen=True)
class TableForm:
    """What a run has made of each column.

    Attributes:
        content: JSON-ready: `format`, `target`, the target column's name or empty, and `columns`,
            each with `name` and `kind`. A `drop` has its reason `why`. A `category` has
            `categories`, and those that are `rare`, or empty texts for missing values. Others have
            `median`, `shift`, `scale`, `flag`, whether a feature says that a value is missing, and
            `periods`, days after which a date is alike. A `date` may have the `form` of its texts,
            and a `number` its decimal mark, where the configuration says it. The table has the
            `decimal` mark of the file, and texts that are `missing` values.
    """

    content: dict[str, Any]

    @property
    def _inputs(self) -> list[dict[str, Any]]:
        """The columns that become inputs."""
        return [one for one in self.content["columns"] if one["kind"] != "drop"]

    @property
    def features(self) -> list[tuple[int, bool, int]]:
        """Properties of each input [F].

        They are the number of its column among those that become inputs, from 0; whether it is a
        number of the table, and not made of a date or a category; and, of a number, the input that
        is 1 where it is missing, else -1.
        """
        found = list[tuple[int, bool, int]]()
        for i, one in enumerate(self._inputs):
            is_number = one["kind"] == "number"
            flag = len(found) + 1 if is_number and one["flag"] else -1
            found += [(i, is_number, flag), *[(i, False, -1)] * (_num_features(one) - 1)]
        return found

    def rows(self, inputs: NDArray) -> list[dict[str, str]]:
        """The inverse of `encode`: texts by the columns that became inputs [N, F].

        Rare categories, and a value that was missing where none was missing in training, cannot be
        told from others of their input.
        """
        columns = self._inputs
        ends = np.cumsum([_num_features(one) for one in columns])[:-1]
        return [
            {one["name"]: _text(one, part) for one, part in zip(columns, parts, strict=True)}
            for parts in (np.split(row, ends) for row in np.asarray(inputs, np.float64))
        ]

    def apply(self, columns: Columns) -> tuple[NDArray, list[str]]:
        """Makes inputs [N, F] float32 of raw columns, and warnings on what training did not have.

        Raises:
            InputError: a column is not there, or holds what it cannot.
        """
        given = {}
        for one in self._inputs:
            column = columns.get(one["name"])
            if column is None:
                continue
            if {one["kind"], column.kind} in ({"date", "number"}, {"date", "boolean"}):
                raise InputError(
                    f"column {shown(repr(one['name']))} holds a {column.kind} in each row, and was "
                    f"learned as a {one['kind']}; convert it"
                )
            given[one["name"]] = column.texts() if one["kind"] == "category" else column.values
        try:
            return read_table.encode(given, self.content)
        except ValueError as error:
            raise InputError(shown(str(error))) from None

    def encode(self, data: Any) -> NDArray:
        """Makes inputs [N, F] float32 of a table as programs have it; warnings go to the log.

        Args:
            data: a data frame, or a mapping from names to columns; or rows, mappings from names to
                values.

        Raises:
            InputError: as of `apply`.
        """
        names = [one["name"] for one in self.content["columns"]]
        if isinstance(data, Sequence) and data and isinstance(data[0], Mapping):
            there = set[str]().union(*data)
            data = {name: [row.get(name) for row in data] for name in names if name in there}
        inputs, warnings = self.apply(of_frame(data, needed=names))
        for line in warnings:
            note(shown(line))
        return inputs

    def lines(self) -> list[str]:
        """What was made of each column, a line each."""
        rows = [(one["name"], *_said(one)) for one in self.content["columns"]]
        if target := self.content["target"]:
            rows.append((target, "target", ""))
        width = max(len(name) for name, _, _ in rows)
        return [shown(f"{name:<{width}}  {kind:<8}  {what}".rstrip()) for name, kind, what in rows]


def _said(one: Mapping[str, Any]) -> tuple[str, str]:
    """What became of a column, and more on it."""
    kind = one["kind"]
    if kind == "drop":
        return "left out", one["why"]
    if kind == "category":
        names = [text or _MISSING for text in one["categories"]]
        rare = f"; {len(one['rare'])} rare ones share a column" * bool(one["rare"])
        return kind, f"{len(names)}: {listed(names)}{rare}"
    what = f"mean {one['shift']:.4g}, sd {one['scale']:.4g}"
    if kind == "date":
        periods = map(PERIODS.__getitem__, one["periods"])
        what = ", ".join([f"median {_day(one['median'])}", *periods])
    return kind, what + "; missing values are flagged" * one["flag"]


def _text(one: Mapping[str, Any], row: NDArray) -> str:
    """The value of a column of which a row holds the inputs."""
    if one["kind"] == "category":
        names = [*one["categories"], "(rare or unseen)"]
        return (names[row.argmax()] or _MISSING) if row.any() else "(unseen)"
    if one["flag"] and row[-1]:
        return _MISSING
    value = float(row[0]) * one["scale"] + one["shift"]
    if one["kind"] == "boolean":
        return "true" if value > 0.5 else "false"
    return _day(value) if one["kind"] == "date" else f"{value:.4g}"


def _day(number: float) -> str:
    return str(np.datetime64(int(np.floor(number + 0.01)), "D"))


# Fitting.


def fit(columns: Columns, what: str = "it", **also: Any) -> TableForm:
    """Fits how training rows become inputs.

    Args:
        columns: of the training rows, by `column_kinds.typed`.
        what: the table is, for messages.
        **also: entries of the content: `target`, `missing` and `decimal`.

    Raises:
        InputError: no column is left.
    """
    entries = [{"name": name, **_fitted(column)} for name, column in columns.items()]
    if all(one["kind"] == "drop" for one in entries):
        lines = ", ".join(f"{one['name']}: {one['why']}" for one in entries)
        raise InputError(f"{what} has no column to learn from ({shown(lines)})")
    usual = {"target": "", "missing": [], "decimal": "."}
    return TableForm({"format": FORMAT, "columns": entries, **usual, **also})


@np.errstate(all="ignore")  # What overflows is refused when it becomes an input.
def _fitted(column: Column) -> dict[str, Any]:
    """What becomes of one column."""
    kind = column.kind
    values = column.values
    if kind == "drop":
        return {"kind": kind, "why": column.detail}
    if kind == "category":
        counts = collections.Counter(map(read_table.category, column.texts()))
        ranks = sorted(sorted(counts), key=lambda text: -counts[text])
        if not ranks[1:]:
            return _constant(ranks[0] and repr(ranks[0]))
        least = min(_LEAST, max(1, len(values) // 10))
        kept = [text for text in ranks if counts[text] >= least][: MOST_CATEGORIES - 1]
        return {"kind": kind, "categories": sorted(kept), "rare": sorted({*ranks} - {*kept})}
    is_missing = np.isnan(values)
    there = values[~is_missing]
    if not len(there):
        return _constant("")
    if np.ptp(values) == 0:
        return _constant(f"{there[0]:g}")
    median = float(np.median(there))
    filled = np.where(is_missing, median, values)
    periods = PERIODS if kind == "date" else {}
    parts = {days: np.floor(there * _PARTS / days) % _PARTS for days in periods}
    return {
        "kind": kind,
        "median": median,
        "shift": float(filled.mean()),
        "scale": float(filled.std()) or 1.0,
        "flag": int(is_missing.any()),
        "periods": [days for days, found in parts.items() if len(np.unique(found)) > 1],
        **({"form": column.detail} if column.detail else {}),
    }


def _constant(text: str) -> dict[str, Any]:
    return {"kind": "drop", "why": f"always {text}" if text else "all values are missing"}


def _num_features(one: Mapping[str, Any]) -> int:
    """Inputs that a column becomes."""
    if one["kind"] == "category":
        return len(one["categories"]) + bool(one["rare"])
    return 1 + 2 * len(one["periods"]) + one["flag"]
