"""The source for tables: files and data frames with named columns of any kind."""

import dataclasses
import hashlib
from collections.abc import Mapping

import numpy as np

from ensemble.config.builtin import column_types
from ensemble.data import copies, own_arrays
from ensemble.data.dataset import Dataset
from ensemble.data.source import Examples, Parts, Request, Strata
from ensemble.data.splitting import POOL, assign_splits
from ensemble.data.tables import column_kinds, raw_columns, table_form
from ensemble.data.tables.column_kinds import decimal_of, kind_of_target, target_values
from ensemble.data.tables.raw_columns import Column, Columns, num_rows, take_target
from ensemble.data.tables.table_files import read_files
from ensemble.errors import InputError, quoted, shown
from ensemble.notes import note


def target_of_files(name: str, target: str) -> str:
    """Whether the target's column of a table's files holds `labels` or `targets`.

    Raises:
        InputError: as of `load_table`.
    """
    columns = _first(read_files(name))
    return kind_of_target(take_target(columns, target, name)[1], target, decimal_of(columns))


def load_table(name: str, request: Request) -> Dataset:
    """Makes a data set of a table's files.

    Raises:
        InputError: they cannot be read, or their columns cannot be learned.
    """
    asked = request.table
    parts = dict[str, Examples]()
    kind = request.table.kind
    files = read_files(name)
    decimal = decimal_of(_first(files), "")
    for part, columns in files.items():
        inputs, target = take_target(columns, asked.target, name)
        blank = target.without(asked.na_values or ())
        kind = kind or kind_of_target(blank, asked.target, decimal)
        parts[part] = Examples._make((inputs, target))
    return dataset_from_frames(Parts(parts, True, kind or ""), name, request, decimal)


def _first(parts: Mapping[str, Columns]) -> Columns:
    """What says what columns are."""
    return parts.get(POOL) or parts["train"]


def dataset_from_frames(given: Parts, name: str, request: Request, decimal: str = "") -> Dataset:
    """Makes a data set of tables, and targets beside them.

    Args:
        given: tables, and their targets.
        name: of the data.
        request: how they are asked for.
        decimal: the decimal mark of a file, where the columns do not show it; empty: unknown.

    Raises:
        InputError: a column cannot be learned, or there are too few rows.
    """
    asked = request.table
    missing = request.table.na_values or ()
    raw = dict[str, Columns]()
    parts = dict[str, Examples]()
    for part, (inputs, y) in given.parts.items():
        columns = raw_columns.of_frame(inputs, name)
        raw[part] = {title: one.without(missing) for title, one in columns.items()}
        if missing or isinstance(y, Column):
            column = raw_columns.of_frame({given.kind: y}, name)[given.kind].without(missing)
            found = target_values(column, asked.target or given.kind, given.kind, decimal)
            y = found if isinstance(y, Column) else y
        parts[part] = Examples(np.arange(num_rows(columns), dtype=np.float32)[:, None], y)
    own = own_arrays.check_arrays(dataclasses.replace(given, parts=parts), name)
    by, _, title = asked.split_by.partition(":")
    chosen = column_types(asked.column_types or {})
    aside = {title: f"drop:config.split_by is by its {by}s"} if by else {}
    decimal = decimal_of(_first(raw), decimal)
    first = column_kinds.typed(_first(raw), aside | chosen, decimal)
    tables = {
        part: first
        if table is _first(raw)
        else {
            title: column_kinds.as_kind(table[title], title, one.kind, one.detail, decimal)
            for title, one in first.items()
            if title in table
        }
        for part, table in raw.items()
    }
    written = tables if title in chosen else raw
    strata = {part: _strata(by, title, table, name) for part, table in written.items() if by}
    digests = {part: digest_rows(table) for part, table in tables.items()}
    places = assign_splits(own.parts, name, request, digests.__getitem__, strata or None)
    part, rows = places["train"]
    form = table_form.fit(
        {title: one.rows(rows) for title, one in tables[part].items()},
        name,
        target=asked.target,
        missing=[*missing],
        decimal=decimal or ".",
    )
    encoded = {part: form.apply(table) for part, table in tables.items()}
    for line in encoded["test"][1] if "test" in encoded else ():
        note(f"{name}: test: {shown(line)}")
    splits = dict[str, Examples]()
    groups = dict[str, Strata]()
    content = dict[str, str]()
    for split, (part, taken) in places.items():
        splits[split] = Examples(encoded[part][0][taken], own.parts[part].targets[taken])
        whole = digests[part][taken].tobytes() + splits[split].targets.tobytes()
        content[split] = hashlib.blake2b(whole, digest_size=8).hexdigest()
        if by:
            groups[split] = strata[part]._replace(values=strata[part].values[taken])
    dataset = Dataset(
        name,
        splits,
        own.class_names,
        train_weights=None if own.weights is None else own.weights[rows],
        table=form,
        groups=groups,
        content=content,
    )
    own_arrays.warn_of_absent_classes(dataset)
    return dataset


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
    values = column.texts()
    is_missing = values == ""
    if by == "time":
        found = column_kinds.infer(column, name)
        if found.kind not in ("date", "number"):
            raise InputError(
                f"config.split_by='time:{name}' needs dates, such as 2024-12-31, or numbers; "
                f"the column holds {quoted(values.tolist(), 1)}; if these are dates, set "
                f"config.column_types='{name}=date:%d/%m/%Y', in their form"
            )
        is_missing = np.isnan(found.values)
    if is_missing.any():
        raise InputError(
            f"column {shown(repr(name))} of config.split_by is missing in {is_missing.sum()} "
            f"rows, first in row {is_missing.argmax() + 1}: fill it in or remove these rows"
        )
    return Strata(name, by, found.values if by == "time" else values.astype(str))


def digest_rows(columns: Columns) -> np.ndarray:
    """Digests uint64 [N] of rows, by `copies.digest_examples`: equal ones are of equal rows."""
    codes = np.concatenate([_codes(columns[name]) for name in sorted(columns)], axis=1)
    return copies.digest_examples(codes, np.dtype(np.float64))


def _codes(column: Column) -> np.ndarray:
    """Numbers [N, n] that are equal where values are, in every table."""
    if column.values.dtype.kind == "f":
        return column.values[:, None]
    texts = column.values.tolist()
    known = {text: hashlib.blake2b(text.encode(), digest_size=8).digest() for text in {*texts}}
    found = b"".join([known[text] for text in texts])
    return np.frombuffer(found, np.uint32).reshape(-1, 2).astype(np.float64)
