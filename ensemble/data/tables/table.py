"""Tables as a source: how columns become inputs, fitted to training rows and kept as JSON.

`read_table` applies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.config.builtin import column_types
from ensemble.data.own_arrays import check_targets
from ensemble.data.source import Examples, Parts, Request, Source, Strata
from ensemble.data.splitting import carve
from ensemble.data.tables import read_table
from ensemble.data.tables.columns import (
    Column,
    Columns,
    check_whole,
    digest_rows,
    infer,
    joined,
    kind_of_target,
    of_frame,
    read_files,
    take_target,
    target_values,
    typed,
)
from ensemble.errors import InputError, aligned, listed, shown
from ensemble.notes import note
from ensemble.pytrees import ByName

PERIODS = (365.2425, 7.0, 1.0)
"""Days of the year, of the week and the time of the day after which dates are alike."""
MOST_CATEGORIES = 32
"""Inputs that a column of categories becomes, that of all rare ones among them."""
_LEAST = 3  # Rows of a category that has a column of its own.
_PARTS = 7  # Of a period, in more than one of which dates must lie.


@dataclass(frozen=True)
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

    content: ByName

    @property
    def _learned(self) -> list[ByName]:
        """The columns that become inputs."""
        return [one for one in self.content["columns"] if one["kind"] != "drop"]

    @property
    def features(self) -> list[Any]:
        """Properties of each input [F].

        They are the number of its column among those that become inputs, from 0, and whether it is
        a number of the table, and not made of a date or a category.
        """
        found = []
        for i, one in enumerate(self._learned):
            if one["kind"] == "category":
                found += [(i, False)] * (len(one["categories"]) + bool(one["rare"]))
            else:
                others = 2 * len(one["periods"]) + one["flag"]
                found += [(i, one["kind"] == "number")] + [(i, False)] * others
        return found

    def apply(self, columns: Columns) -> tuple[NDArray, list[str]]:
        """Makes inputs [N, F] float32 of raw columns, and warnings on what training did not have.

        Raises:
            InputError: a column is not there, or holds what it cannot.
        """
        given = {}
        for one in self._learned:
            name = one["name"]
            if name not in columns:
                continue
            column = columns[name]
            if {one["kind"], column.kind} in ({"date", "number"}, {"date", "boolean"}):
                raise InputError(
                    f"column {name!r} holds a {column.kind} in each row, and was "
                    f"learned as a {one['kind']}; convert it"
                )
            given[name] = column.texts() if one["kind"] == "category" else column.values
        try:
            return read_table.encode(given, self.content)
        except ValueError as error:
            raise InputError(str(error)) from None

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
            there = set().union(*data)
            data = {name: [row.get(name) for row in data] for name in names if name in there}
        inputs, warnings = self.apply(of_frame(data, needed=names))
        for line in warnings:
            note(line)
        return inputs

    def lines(self) -> list[str]:
        """What was made of each column, a line each."""
        rows = []
        for one in self.content["columns"]:
            names = one.get("categories", []) + one.get("rare", [])
            texts = listed([text or "(missing)" for text in names])
            what = one.get("why") or (f"{len(names)}: {texts}" if names else "")
            rows.append((one["name"], one["kind"].replace("drop", "left out"), what))
        if target := self.content["target"]:
            rows.append((target, "target", ""))
        return [shown(line) for line in aligned(rows, range(3))]


# Fitting.


@np.errstate(all="ignore")  # What overflows is refused when it becomes an input.
def _fitted(column: Column) -> ByName:
    """What becomes of one column."""
    kind = column.kind
    values = column.values
    if kind == "drop":
        return {"kind": kind, "why": column.detail}
    if kind == "category":
        counts = Counter(map(read_table.category, column.texts()))
        ranks = sorted(sorted(counts), key=counts.__getitem__, reverse=True)
        if ranks[1:]:
            least = min(_LEAST, max(1, len(values) // 10))
            kept = [text for text in ranks if counts[text] >= least][: MOST_CATEGORIES - 1]
            return {"kind": kind, "categories": sorted(kept), "rare": sorted({*ranks} - {*kept})}
        only = ranks[0] and repr(ranks[0])
    else:
        is_missing = np.isnan(values)
        there = values[~is_missing]
        if len(there) and np.ptp(values) != 0:
            median = float(np.median(there))
            filled = np.where(is_missing, median, values)
            days = PERIODS if kind == "date" else ()
            return {
                "kind": kind,
                "median": median,
                "shift": float(filled.mean()),
                "scale": float(filled.std()) or 1.0,
                "flag": int(is_missing.any()),
                "periods": [one for one in days if np.ptp(np.floor(there * _PARTS / one) % _PARTS)],
                **({"form": column.detail} if column.detail else {}),
            }
        only = f"{there[0]:g}" if len(there) else ""
    return {"kind": "drop", "why": f"always {only}" if only else "all values are missing"}


# The source.


def target_of_files(name: str, target: str) -> str:
    """Whether the target's column of a table's files holds `labels` or `targets`.

    Raises:
        InputError: as of `load_table`.
    """
    columns = next(iter(read_files(name).values()))
    return kind_of_target(take_target(columns, target, name)[1], target)


def load_table(name: str, request: Request) -> Source:
    """Makes a data set of a table's files.

    Raises:
        InputError: they cannot be read, or their columns cannot be learned.
    """
    parts = {
        part: Examples._make(take_target(columns, request.target, name))
        for part, columns in read_files(name).items()
    }
    return source_of(Parts(parts, True, request.kind), name, request)


def source_of(given: Parts, name: str, request: Request) -> Source:
    """Makes a data set of tables, and targets beside them.

    Args:
        given: tables, and their targets.
        name: of the data.
        request: how they are asked for.

    Raises:
        InputError: a column cannot be learned, or there are too few rows.
    """
    # Texts that stand for a missing value, as `read_table` compares them.
    missing = [one.strip().lower() for one in request.na_values or ()]
    frames = {part: of_frame(inputs, name) for part, (inputs, _) in given.parts.items()}
    columns = {title: one.without(missing) for title, one in joined(frames).items()}
    first = next(iter(columns.values()))  # All columns of a file have its decimal mark.
    parts = {}
    end = 0
    for part, (_, y) in given.parts.items():
        if isinstance(y, Column):
            column = replace(y.without(missing), detail=first.detail)
            y = target_values(column, request.target or given.kind, given.kind)
        begin = end
        end += len(next(iter(frames[part].values())))
        parts[part] = Examples(np.arange(begin, end), y)  # Of the joined columns.
    own = check_targets(replace(given, parts=parts), name)
    by, _, title = request.split_by.partition(":")
    chosen = column_types(request.column_types or {})
    aside = {title: f"drop:config.split_by is by its {by}s"} if by else {}
    table = typed(columns, aside | chosen)
    strata = None
    if by:
        column = (table if title in chosen else columns)[title]
        values = column.texts().astype(str)
        if by == "time":
            found = infer(column, title)
            if found.kind not in ("date", "number"):
                raise InputError(
                    f"config.split_by='time:{title}' needs dates, such as 2024-12-31, or numbers; "
                    f"if the column holds dates, set config.column_types='{title}=date:%d/%m/%Y', "
                    "in their form"
                )
            values = found.values
        check_whole(values, f"column {title!r} of config.split_by")
        strata = Strata(title, by, values)
    digests = digest_rows(table)
    splits, weights = carve(own, name, request, digests.__getitem__, strata)
    rows = splits["train"].inputs
    entries = [{"name": title, **_fitted(one.rows(rows))} for title, one in table.items()]
    if all(one["kind"] == "drop" for one in entries):
        lines = ", ".join(f"{one['name']}: {one['why']}" for one in entries)
        raise InputError(f"{name} has no column to learn from ({shown(lines)})")
    also = {"missing": missing, "decimal": ("" if first.kind else first.detail) or "."}
    form = TableForm({"format": 3, "columns": entries, "target": request.target, **also})
    inputs, _ = form.apply(table)
    return Source(
        name,
        {split: Examples(inputs[rows], y) for split, (rows, y) in splits.items()},
        own.class_names,
        train_weights=weights,
        table=form,
        groups={split: strata.part(rows) for split, (rows, _) in splits.items() if strata},
        content={
            split: blake2b(digests[rows].tobytes() + y.tobytes(), digest_size=8).hexdigest()
            for split, (rows, y) in splits.items()
        },
    )
