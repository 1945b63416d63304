"""The source for tables: files and data frames with named columns of any kind."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.config.builtin import column_types
from ensemble.data import copies, own_arrays
from ensemble.data.source import Examples, Parts, Request, Source, Strata
from ensemble.data.splitting import POOL, assign_splits
from ensemble.data.tables import column_kinds, read_table, table_form
from ensemble.data.tables.column_kinds import as_kind, kind_of_target, target_values
from ensemble.data.tables.raw_columns import Column, Columns, num_rows, of_frame, take_target
from ensemble.data.tables.table_files import read_files
from ensemble.errors import InputError, quoted, shown
from ensemble.notes import note


def target_of_files(name: str, target: str) -> str:
    """Whether the target's column of a table's files holds `labels` or `targets`.

    Raises:
        InputError: as of `load_table`.
    """
    columns = _first(read_files(name))
    return kind_of_target(take_target(columns, target, name)[1], target, _decimal_of(columns))


def load_table(name: str, request: Request) -> Source:
    """Makes a data set of a table's files.

    Raises:
        InputError: they cannot be read, or their columns cannot be learned.
    """
    asked = request.table
    files = read_files(name)
    decimal = _decimal_of(_first(files))
    parts = {
        part: Examples._make(take_target(columns, asked.target, name))
        for part, columns in files.items()
    }
    target = _first(parts).targets.without(asked.na_values or ())
    kind = asked.kind or kind_of_target(target, asked.target, decimal)
    return dataset_from_frames(Parts(parts, True, kind), name, request, decimal)


def _first(parts: Mapping[str, Any]) -> Any:
    """The part that says what columns are."""
    return parts.get(POOL) or parts["train"]


def _decimal_of(columns: Columns) -> str:
    """The decimal mark of a file; empty if its texts do not show it."""
    texts = {name: one.values for name, one in columns.items() if not one.kind}
    return read_table.decimal_mark(texts, "")


def dataset_from_frames(given: Parts, name: str, request: Request, decimal: str = "") -> Source:
    """Makes a data set of tables, and targets beside them.

    Args:
        given: tables, and their targets.
        name: of the data.
        request: how they are asked for.
        decimal: the decimal mark of a file; empty: unknown.

    Raises:
        InputError: a column cannot be learned, or there are too few rows.
    """
    asked = request.table
    missing = asked.na_values or ()
    raw = dict[str, Columns]()
    parts = dict[str, Examples]()
    for part, (inputs, y) in given.parts.items():
        columns = of_frame(inputs, name)
        raw[part] = {title: one.without(missing) for title, one in columns.items()}
        if isinstance(y, Column):
            y = target_values(y.without(missing), asked.target or given.kind, given.kind, decimal)
        parts[part] = Examples(np.empty(num_rows(columns)), y)
    own = own_arrays.check_targets(dataclasses.replace(given, parts=parts), name)
    by, _, title = asked.split_by.partition(":")
    chosen = column_types(asked.column_types or {})
    aside = {title: f"drop:config.split_by is by its {by}s"} if by else {}
    first = column_kinds.typed(_first(raw), aside | chosen, decimal)
    tables = {
        part: first if columns is _first(raw) else _alike(columns, first, decimal)
        for part, columns in raw.items()
    }
    written = tables if title in chosen else raw
    strata = {part: _strata(by, title, table, name) for part, table in written.items() if by}
    digests = {part: digest_rows(table) for part, table in tables.items()}
    places = assign_splits(own.parts, name, request, digests.__getitem__, strata)
    part, rows = places["train"]
    learned = {title: one.rows(rows) for title, one in tables[part].items()}
    form = table_form.fit(learned, name, asked.target, missing, decimal or ".")
    encoded = {part: form.apply(table) for part, table in tables.items()}
    for line in encoded["test"][1] if "test" in encoded else ():
        note(f"{name}: test: {shown(line)}")
    splits = dict[str, Examples]()
    groups = dict[str, Strata]()
    content = dict[str, str]()
    for split, (part, taken) in places.items():
        targets = own.parts[part].targets[taken]
        splits[split] = Examples(encoded[part][0][taken], targets)
        whole = digests[part][taken].tobytes() + targets.tobytes()
        content[split] = hashlib.blake2b(whole, digest_size=8).hexdigest()
        if by:
            groups[split] = strata[part]._replace(values=strata[part].values[taken])
    return Source(
        name,
        splits,
        own.class_names,
        train_weights=None if own.weights is None else own.weights[rows],
        table=form,
        groups=groups,
        content=content,
    )


def _alike(columns: Columns, first: Columns, decimal: str) -> Columns:
    """Columns as what those of the first part are taken for."""
    return {
        title: as_kind(columns[title], title, one.kind, one.detail, decimal)
        for title, one in first.items()
        if title in columns
    }


def _strata(by: str, name: str, columns: Columns, what: str) -> Strata:
    """The groups or times of rows.

    Raises:
        InputError: there is no such column, or it has missing values, or no times.
    """
    if name not in columns:
        raise InputError(
            f"config.split_by names the column {shown(repr(name))}, and {what} has "
            f"{quoted([*columns], 12)}"
        )
    column = columns[name]
    values = column.texts().astype(str)
    is_missing = values == ""
    if by == "time":
        found = column_kinds.infer(column, name)
        if found.kind not in ("date", "number"):
            raise InputError(
                f"config.split_by='time:{name}' needs dates, such as 2024-12-31, or numbers; "
                f"the column holds {quoted(values.tolist(), 1)}; if these are dates, set "
                f"config.column_types='{name}=date:%d/%m/%Y', in their form"
            )
        values = found.values
        is_missing = np.isnan(values)
    if is_missing.any():
        raise InputError(
            f"column {shown(repr(name))} of config.split_by is missing in {is_missing.sum()} "
            f"rows, first in row {is_missing.argmax() + 1}: fill it in or remove these rows"
        )
    return Strata(name, by, values)


def digest_rows(columns: Columns) -> NDArray:
    """Digests uint64 [N] of rows, by `copies.digest_examples`: equal ones are of equal rows."""
    codes = np.concatenate([_codes(columns[name]) for name in sorted(columns)], axis=1)
    return copies.digest_examples(codes)


def _codes(column: Column) -> NDArray:
    """Numbers [N, n] that are equal where values are, in every table."""
    if column.values.dtype.kind == "f":
        return column.values[:, None]
    texts = column.values.tolist()
    known = {text: hashlib.blake2b(text.encode(), digest_size=8).digest() for text in {*texts}}
    found = b"".join([known[text] for text in texts])
    return np.frombuffer(found, np.uint32).reshape(-1, 2).astype(np.float64)
