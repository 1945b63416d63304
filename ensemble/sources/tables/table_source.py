"""The source for tables: files and data frames with named columns of any kind."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.notes import note
from ensemble.source import Request, Strata, Table
from ensemble.sources import copies, own_arrays
from ensemble.sources.dataset import Dataset, own_dataset
from ensemble.sources.splitting import POOL, Rows, assign_splits
from ensemble.sources.tables import column_kinds, frames, table_form
from ensemble.sources.tables.raw_columns import (
    Column,
    Columns,
    check_none_is_missing,
    kind_of_target,
    named,
    num_rows,
    target_values,
)
from ensemble.sources.tables.row_splits import assign_by, parse_split, strata_of
from ensemble.sources.tables.table_files import read_files


@dataclasses.dataclass(frozen=True, eq=False)
class TableDataset(Dataset):
    """A data set whose inputs are made of the columns of a table.

    Attributes:
        table: what was made of each column.
        rows: what the split is by, by split; empty of a random one.
        content: digests of the raw rows of each split.
    """

    table: Table | None = dataclasses.field(kw_only=True)
    rows: Mapping[str, Strata] = dataclasses.field(default_factory=dict, kw_only=True)
    content: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)

    def strata(self, split: str) -> Strata | None:
        """The groups or times of a split's rows."""
        return self.rows.get(split)

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when a column's values do, or what is made of them."""
        made = self.table.content if self.table else None
        whole = json.dumps([super().fingerprint, made, dict(self.content)])
        return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()

    @functools.cached_property
    def test_fingerprint(self) -> str | None:
        """The same of the rows to test alone, whatever is made of them."""
        return self.content.get("test")


def of_form(dataset: Dataset, table: Table) -> TableDataset:
    """The same data set, whose inputs were made of the columns of a table."""
    fields = {one.name: getattr(dataset, one.name) for one in dataclasses.fields(dataset)}
    return TableDataset(**fields, table=table)


def load_table(name: str, request: Request) -> TableDataset:
    """Makes a data set of a table's files.

    Raises:
        UserError: they cannot be read, or their columns cannot be learned.
    """
    return dataset_from_tables(read_files(name), name, request)


def target_of_files(name: str, target: str) -> str:
    """Whether the target's column of a table's files holds `labels` or `targets`.

    Raises:
        UserError: as of `load_table`.
    """
    parts = read_files(name)
    _, column = _take_target(parts.get(POOL) or parts["train"], target, name)
    return kind_of_target(column, target)


def dataset_from_tables(parts: Mapping[str, Columns], name: str, request: Request) -> TableDataset:
    """Makes a data set of tables with a column of targets.

    Args:
        parts: columns of each given split, or of `POOL` alone.
        name: of the data.
        request: with the target's name.

    Raises:
        UserError: there is no such column, or it has missing values, or others than it must.
    """
    arrays: dict[str, Any] = {}
    asked = request.table
    missing = column_kinds.parse_na_values(asked.na_values)
    parts = {part: _without(columns, missing) for part, columns in parts.items()}
    taken = {part: _take_target(columns, asked.target, name) for part, columns in parts.items()}
    learned = taken[POOL if POOL in taken else "train"][1]
    kind = asked.kind or kind_of_target(learned, asked.target)
    for part, (left, column) in taken.items():
        prefix = "" if part == POOL else f"{part}_"
        arrays[f"{prefix}inputs"] = left
        arrays[f"{prefix}{kind}"] = target_values(column, asked.target, kind)
    return dataset_from_frames(arrays, name, request)


def _take_target(columns: Columns, target: str, name: str) -> tuple[dict[str, Column], Column]:
    if not target:
        raise UserError(
            f"{name} is a table: set config.target to the column to learn, one of "
            f"{named([*columns], 20)}"
        )
    return frames.take_target(columns, target, name)


def dataset_from_frames(arrays: Mapping[str, Any], name: str, request: Request) -> TableDataset:
    """Makes a data set of tables, and targets beside them.

    Args:
        arrays: as of `own_arrays`, but inputs are data frames, or columns.
        name: of the data.
        request: how they are asked for.

    Raises:
        UserError: a column cannot be learned, or there are too few rows.
    """
    missing = column_kinds.parse_na_values(request.table.na_values)
    tables, numbered = {}, dict(arrays)
    for key, values in arrays.items():
        if key.endswith("inputs"):
            columns = frames.of_frame(values, name)
            part = key.removesuffix("inputs").removesuffix("_") or POOL
            tables[part] = _without(columns, missing)
            numbered[key] = np.arange(num_rows(columns), dtype=np.float32)[:, None]  # As inputs.
    given = own_arrays.check_arrays(numbered, name)
    for part in tables:
        prefix = "" if part == POOL else f"{part}_"
        for kind in ("labels", "targets"):
            inputs, targets = arrays[f"{prefix}inputs"], arrays.get(f"{prefix}{kind}")
            frames.note_other_rows(inputs, targets, f"{name}: {prefix}inputs and {prefix}{kind}")
            if targets is not None and missing:
                column = frames.of_frame({"y": targets}, name)["y"].without(missing)
                check_none_is_missing(column, request.table.target or f"{prefix}{kind}")
    by = parse_split(request.table.split)
    aside = {} if by is None else {by.column: f"config.split is by its {by.kind}s"}
    chosen = column_kinds.parse_columns(request.table.columns)
    written = request.table.date_format
    kinds = column_kinds.kinds_of(tables.get(POOL) or tables["train"], chosen, aside, written)
    tables = {part: column_kinds.parsed(columns, kinds) for part, columns in tables.items()}
    column_kinds.note_row_numbers(tables.get(POOL) or tables["train"], kinds, chosen)
    season = request.table.season
    strata = (
        {}
        if by is None
        else {
            part: strata_of(by, one, name, written)._replace(season=season)
            for part, one in tables.items()
        }
    )
    if by is None:
        digests = functools.partial(_digests, tables) if request.copies_together else None
        places = assign_splits(given.targets, name, request.seed, request.hold_out, digests)
    else:
        sizes = {part: len(one) for part, one in given.targets.items()}
        places = assign_by(strata, sizes, name, request.seed, request.hold_out)
    learned = _learned(tables, places["train"])
    form = table_form.fit(learned, kinds, request.table.target, name, missing)
    encoded = {part: form.apply(one) for part, one in tables.items()}
    for part, (_, warnings) in encoded.items():
        for line in warnings if part == "test" else ():
            note(f"{name}: {part}: {shown(line)}")
    explicit = _by_split(arrays, {part: one for part, (one, _) in encoded.items()}, places)
    made = own_dataset(explicit, name, Request(hold_out=False, copies_together=False))  # As above.
    return dataclasses.replace(
        of_form(made, form),
        shift=np.zeros((), np.float32),
        scale=np.ones((), np.float32),
        rows={split: strata[part].at(rows) for split, (part, rows) in places.items() if strata},
        content={
            split: _digest(tables[part], rows, made.targets(split))
            for split, (part, rows) in places.items()
        },
    )


def _without(columns: Columns, missing: Sequence[str]) -> dict[str, Column]:
    """Columns with gaps in place of values that stand for missing ones."""
    return {
        name: column.without(missing) if missing else column for name, column in columns.items()
    }


def _learned(tables: Mapping[str, Columns], train: Rows) -> Columns:
    """The columns of the rows to learn."""
    rows = slice(None) if train.indices is None else train.indices
    return {name: column.rows(rows) for name, column in tables[train.part].items()}


def _by_split(
    arrays: Mapping[str, Any], encoded: Mapping[str, np.ndarray], places: Mapping[str, Rows]
) -> dict[str, Any]:
    """Arrays with the splits given, of inputs [N, F]."""
    found = {}
    for split, (part, rows) in places.items():
        prefix = "" if part == POOL else f"{part}_"
        taken = slice(None) if rows is None else rows
        found[f"{split}_inputs"] = encoded[part][taken]
        for key, values in arrays.items():
            if key in _OF_ALL or not key.startswith(prefix) or key.endswith("inputs"):
                continue
            found[f"{split}_{key.removeprefix(prefix)}"] = np.asarray(values)[taken]
    for key in _OF_ALL & arrays.keys():
        found[key] = arrays[key]
    if own_arrays.WEIGHTS in arrays and places["train"].indices is not None:
        weights = np.asarray(arrays[own_arrays.WEIGHTS])
        found[own_arrays.WEIGHTS] = weights[places["train"].indices]
    return found


_OF_ALL = {"class_names", own_arrays.WEIGHTS}
"""Arrays that belong to no split."""


def _digests(tables: Mapping[str, Columns], part: str) -> np.ndarray:
    """Digests [N] of a part's rows, by `copies.digest_examples`, comparable between parts."""
    first = tables.get(POOL) or tables["train"]  # Files may have their columns in other orders.
    return digest_rows({name: tables[part][name] for name in first if name in tables[part]})


def digest_rows(columns: Columns) -> np.ndarray:
    """Digests [N] of rows, by `copies.digest_examples`; the order of columns counts."""
    codes = np.concatenate([_codes(one) for one in columns.values()], axis=1)
    return copies.digest_examples(codes, np.dtype(np.float64))


def _codes(column: Column) -> np.ndarray:
    """Numbers [N, n] that are equal where values are, in every table."""
    if column.values.dtype.kind == "f":
        return column.values[:, None].astype(np.float64)
    texts, rows = np.unique(column.texts().astype(str), return_inverse=True)
    found = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts.tolist()]
    return np.frombuffer(b"".join(found), np.uint32).reshape(-1, 2).astype(np.float64)[rows]


def _digest(columns: Columns, rows: np.ndarray | None, targets: np.ndarray) -> str:
    """16 hex digits that change when a value of these rows does."""
    digest = hashlib.blake2b(np.asarray(targets).tobytes(), digest_size=8)
    for name in sorted(columns):
        values = columns[name].values if rows is None else columns[name].values[rows]
        digest.update(f"{name};".encode())
        if values.dtype.kind == "f":
            digest.update(np.ascontiguousarray(values).data)
        else:
            digest.update("\0".join(values.tolist()).encode())
    return digest.hexdigest()
