"""How raw columns become inputs: fitted by scikit-learn, kept as JSON, applied by NumPy."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.notes import note
from ensemble.source import Feature
from ensemble.sources.tables import frames, is_table, read_table
from ensemble.sources.tables.raw_columns import Column, Columns, named
from ensemble.storage.table_schema import (
    FORMAT,
    FORMAT_OF_TEXTS,
    MOST_CATEGORIES,
    PERIODS,
    num_features,
)

_LEAST = 3  # Rows of a category that has a column of its own.


@dataclasses.dataclass(frozen=True)
class TableForm:
    """What a run has made of each column.

    Attributes:
        content: JSON-ready: `format`, `target`, the target column's name or empty, and `columns`,
            each with `name` and `kind`. A `drop` has its reason `why`. A `category` has
            `categories`, and those that are `rare`, or empty texts for missing values. Others have
            `median`, `shift`, `scale`, `flag`, whether a feature says that a value is missing, and
            `periods`, days after which a date is alike. Where the configuration says so, a `date`
            has the `form` of its texts, and the table texts that are `missing` values.
    """

    content: dict[str, Any]

    @property
    def columns(self) -> list[dict[str, Any]]:
        """What was made of each column, in the table's order."""
        return list(self.content["columns"])

    @property
    def names(self) -> list[str]:
        """The names of all columns that were there in training, in order."""
        return [one["name"] for one in self.columns]

    @property
    def features(self) -> list[Feature]:
        """What each input [F] is."""
        return [one for i, column in enumerate(self._inputs) for one in _features(column, i)]

    @property
    def _inputs(self) -> list[dict[str, Any]]:
        """The columns that become inputs."""
        return [one for one in self.columns if one["kind"] != "drop"]

    def rows(self, inputs: np.ndarray) -> list[dict[str, str]]:
        """The inverse of `encode`: texts by the columns that became inputs [N, F].

        Rare categories, and a value that was missing where none was missing in training, cannot be
        told from others of their input.
        """
        ends = np.cumsum([num_features(one) for one in self._inputs])
        parts = np.split(np.asarray(inputs, np.float64), ends[:-1], axis=1)
        columns = zip(self._inputs, parts, strict=True)
        texts = {one["name"]: [_text(one, row) for row in part] for one, part in columns}
        return [{name: found[n] for name, found in texts.items()} for n in range(len(inputs))]

    def apply(self, columns: Columns) -> tuple[np.ndarray, list[str]]:
        """Makes inputs [N, F] float32 of raw columns, and warnings on what training did not have.

        Raises:
            UserError: a column is not there, or holds what it cannot.
        """
        kinds = {one["name"]: one["kind"] for one in self.columns}
        given = {}
        for name, column in columns.items():
            learned = kinds.get(name, "drop")
            column = column.without(self.content.get("missing", ()))  # By its own kind, as learned.
            is_date = "date" in (learned, column.kind) and learned not in ("drop", "category")
            if is_date and column.kind not in (learned, "", "text"):
                raise UserError(
                    f"column {shown(repr(name))} holds a {column.kind} in each row, and was "
                    f"learned as a {learned}; convert it"
                )
            given[name] = column.texts() if learned == "category" else column.values
        try:
            return read_table.encode(given, self.content)
        except ValueError as error:
            raise UserError(shown(str(error))) from None

    def encode(self, data: Any) -> np.ndarray:
        """Makes inputs [N, F] float32 of a table as programs have it; warnings go to the log.

        Args:
            data: a data frame, or a mapping from names to columns; rows, mappings from names to
                values; or an array [N, C] of all columns in the order of `names`.

        Raises:
            UserError: as of `apply`.
        """
        if isinstance(data, np.ndarray):
            columns = frames.of_array(data, self.names)
        elif is_table(data) or isinstance(data, Mapping):
            columns = self._named(frames.of_frame(data, needed=self.names))
        elif isinstance(data, Sequence) and data and all(isinstance(r, Mapping) for r in data):
            columns = frames.of_rows(data, self.names)
        else:
            columns = frames.of_array(np.asarray(data), self.names)
        inputs, warnings = self.apply(columns)
        for line in warnings:
            note(shown(line))
        return inputs

    def _named(self, columns: dict[str, Column]) -> dict[str, Column]:
        """Columns by the names that were learned, where a frame made of an array has numbers."""
        learned = [*self.names, self.content["target"]]
        numbers = [str(i) for i in range(len(self.names))]
        if [*columns] == numbers and not set(numbers) & set(learned):
            return dict(zip(self.names, columns.values(), strict=True))
        if others := [name for name in columns if name not in learned]:
            _say_once(f"Columns that were not learned are left out: {named(others)}.")
        return columns

    def lines(self) -> list[str]:
        """What was made of each column, a line each."""
        width = max((len(one["name"]) for one in self.columns), default=0)
        target = self.content["target"]
        rows = [(one["name"], *_said(one)) for one in self.columns]
        rows += [(target, "target", "")] if target else []
        return [shown(f"{name:<{width}}  {kind:<8}  {what}".rstrip()) for name, kind, what in rows]


@functools.cache
def _say_once(line: str) -> None:
    note(line)


def _said(one: Mapping[str, Any]) -> tuple[str, str]:
    kind = one["kind"]
    if kind == "drop":
        return "left out", one["why"]
    if kind == "category":
        shared = [text or _MISSING for text in one["categories"]]
        what = ", ".join(shared[:6]) + (", ..." if len(shared) > 6 else "")
        return kind, f"{len(shared)}: {what}" + (
            f"; {len(one['rare'])} rare ones share a column" if one["rare"] else ""
        )
    what = f"mean {one['shift']:.4g}, sd {one['scale']:.4g}"
    if kind == "date":
        when = np.datetime64("1970-01-01") + np.timedelta64(round(one["median"]), "D")
        what = f"median {when}" + "".join(f", day of the {PERIODS[p]}" for p in one["periods"])
        what = what.replace("day of the day", "time of the day")
        what += f", written {one['form']}" if "form" in one else ""
    return kind, what + ("; missing values are flagged" if one["flag"] else "")


def _features(one: Mapping[str, Any], i: int) -> list[Feature]:
    """The inputs that the column i becomes."""
    name = one["name"]
    if one["kind"] == "category":
        return [Feature(f"{name}={text}", i) for text in _shared(one)]
    phases = [f"{wave} of {name} in {PERIODS[p]}" for p in one["periods"] for wave in _WAVES]
    flags = [Feature(f"{name} is missing", i, is_flag=True)] * bool(one["flag"])
    title = f"{name}, days since 1970" if one["kind"] == "date" else name
    is_number = one["kind"] == "number"
    value = Feature(title, i, not phases, one["shift"], one["scale"], is_number)
    return [value, *(Feature(phase, i) for phase in phases), *flags]


_WAVES = ("sine", "cosine")


def _shared(one: Mapping[str, Any]) -> list[str]:
    """What each input of a category stands for."""
    found = [text or _MISSING for text in one["categories"]]
    return found + ["(rare or unseen)"] * bool(one["rare"])


_MISSING = "(missing)"


def _text(one: Mapping[str, Any], row: np.ndarray) -> str:
    """The value of a column of which a row holds the inputs."""
    if one["kind"] == "category":
        return _shared(one)[row.argmax()] if row.any() else "(unseen)"
    if one["flag"] and row[-1]:
        return _MISSING
    value = float(row[0]) * one["scale"] + one["shift"]
    if one["kind"] == "boolean":
        return "true" if value > 0.5 else "false"
    if one["kind"] == "date" and abs(value) < _MOST_DAYS:
        return str(np.datetime64("1970-01-01") + np.timedelta64(math.floor(value + 0.01), "D"))
    return f"{value:.4g}"


_MOST_DAYS = 2_000_000  # Beyond, dates have years of five digits.


# Fitting.


def fit(
    columns: Columns,
    kinds: Mapping[str, tuple[str, str]],
    target: str = "",
    what: str = "it",
    missing: Sequence[str] = (),
) -> TableForm:
    """Fits how training rows become inputs.

    Args:
        columns: of the training rows, by `parsed`.
        kinds: of `kinds_of`.
        target: the name of the target's column, which is none of them.
        what: the table is, for messages.
        missing: texts that stand for missing values, beside those of `read_table`.

    Raises:
        UserError: no column is left.
    """
    entries = [_fitted(name, column, *kinds[name]) for name, column in columns.items()]
    if all(one["kind"] == "drop" for one in entries):
        lines = ", ".join(f"{one['name']}: {one['why']}" for one in entries)
        raise UserError(f"{what} has no column to learn from ({shown(lines)})")
    content = {"format": FORMAT, "target": target, "columns": entries}
    if missing:
        content |= {"missing": [*missing]}
    if missing or any("form" in one for one in entries):
        content["format"] = FORMAT_OF_TEXTS
    return TableForm(content)


def _fitted(name: str, column: Column, kind: str, detail: str) -> dict[str, Any]:
    """What becomes of one column."""
    if kind == "drop":
        return {"name": name, "kind": kind, "why": detail}
    if kind == "category":
        texts = column.texts()
        if len(set(texts)) < 2:
            return {"name": name, "kind": "drop", "why": _why_constant(texts[0])}
        return {"name": name, "kind": kind, **_fit_categories(texts)}
    values = column.values
    there = values[~np.isnan(values)]
    if not len(there) or (len(there) == len(values) and (there == there[0]).all()):
        return {"name": name, "kind": "drop", "why": _why_constant(there[0] if len(there) else "")}
    form = {"form": detail} if kind == "date" and detail else {}
    return {"name": name, "kind": kind, **_fit_numbers(values, kind), **form}


def _why_constant(value: Any) -> str:
    if isinstance(value, str) and not value:
        return "all values are missing"
    return f"always {value:g}" if not isinstance(value, str) else f"always {value!r}"


def _fit_numbers(values: np.ndarray, kind: str) -> dict[str, Any]:
    """Median, mean and scale, by scikit-learn."""
    from sklearn.impute import SimpleImputer  # Its import takes a second: of tables alone.
    from sklearn.preprocessing import StandardScaler  # Likewise.

    with np.errstate(all="ignore"):  # What overflows is refused when it becomes an input.
        imputer = SimpleImputer(strategy="median").fit(values[:, None])
        scaler = StandardScaler().fit(imputer.transform(values[:, None]))
    there = values[~np.isnan(values)]
    periods = [
        period
        for period in PERIODS
        if kind == "date" and len(np.unique(np.floor(there * _PARTS / period) % _PARTS)) > 1
    ]
    return {
        "median": float(imputer.statistics_[0]),
        "shift": float(scaler.mean_[0]),
        "scale": float(scaler.scale_[0]),
        "flag": int(len(there) < len(values)),
        "periods": periods,
    }


_PARTS = 7  # Of a period, in more than one of which dates must lie.


def _fit_categories(texts: np.ndarray) -> dict[str, Any]:
    """The categories with features of their own, and the rare ones, by scikit-learn."""
    from sklearn.preprocessing import OneHotEncoder  # Its import takes a second: of tables alone.

    encoder = OneHotEncoder(
        handle_unknown="infrequent_if_exist",
        min_frequency=min(_LEAST, max(1, len(texts) // 10)),
        max_categories=MOST_CATEGORIES,
    ).fit(texts[:, None])
    (every,), (rare,) = encoder.categories_, encoder.infrequent_categories_
    rare = [] if rare is None else rare.tolist()
    return {"categories": [one for one in every.tolist() if one not in set(rare)], "rare": rare}
