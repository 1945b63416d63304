"""The source for tables: files and data frames with named columns of any kind."""

import dataclasses
import hashlib

import numpy as np
from numpy.typing import NDArray

from ensemble.config.builtin import column_types
from ensemble.data import copies, own_arrays
from ensemble.data.source import Examples, Parts, Request, Source, Strata
from ensemble.data.splitting import assign_splits
from ensemble.data.tables import column_kinds, read_table, table_form
from ensemble.data.tables.column_kinds import kind_of_target, target_values
from ensemble.data.tables.raw_columns import (
    Column,
    Columns,
    check_whole,
    joined,
    num_rows,
    of_frame,
    take_target,
)
from ensemble.data.tables.table_files import read_files
from ensemble.errors import InputError, quoted, shown


def target_of_files(name: str, target: str) -> str:
    """Whether the target's column of a table's files holds `labels` or `targets`.

    Raises:
        InputError: as of `load_table`.
    """
    columns = next(iter(read_files(name).values()))
    return kind_of_target(take_target(columns, target, name)[1], target, _decimal_of(columns))


def load_table(name: str, request: Request) -> Source:
    """Makes a data set of a table's files.

    Raises:
        InputError: they cannot be read, or their columns cannot be learned.
    """
    asked = request.table
    files = read_files(name)
    decimal = _decimal_of(next(iter(files.values())))
    parts = {
        part: Examples._make(take_target(columns, asked.target, name))
        for part, columns in files.items()
    }
    kind = asked.kind or target_of_files(name, asked.target)
    return dataset_from_frames(Parts(parts, True, kind), name, request, decimal)


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
    missing = [one.strip().lower() for one in asked.na_values or ()]
    frames = {part: of_frame(inputs, name) for part, (inputs, _) in given.parts.items()}
    columns = {title: one.without(missing) for title, one in joined(frames).items()}
    parts = dict[str, Examples]()
    end = 0
    for part, (_, y) in given.parts.items():
        if isinstance(y, Column):
            y = target_values(y.without(missing), asked.target or given.kind, given.kind, decimal)
        places = end + np.arange(num_rows(frames[part]))
        end += len(places)
        parts[part] = Examples(places, y)  # Of the joined columns.
    own = own_arrays.check_targets(dataclasses.replace(given, parts=parts), name)
    by, _, title = asked.split_by.partition(":")
    chosen = column_types(asked.column_types or {})
    aside = {title: f"drop:config.split_by is by its {by}s"} if by else {}
    table = column_kinds.typed(columns, aside | chosen, decimal)
    digests = digest_rows(table)
    every = _strata(by, title, (table if title in chosen else columns)[title]) if by else None
    strata = {part: every.part(rows) for part, (rows, _) in own.parts.items() if every}
    assigned = assign_splits(
        own.parts, name, request, lambda part: digests[own.parts[part].inputs], strata
    )
    taken = {split: own.parts[part].inputs[rows] for split, (part, rows) in assigned.items()}
    form = table_form.fit(
        {title: one.rows(taken["train"]) for title, one in table.items()},
        name,
        target=asked.target,
        missing=missing,
        decimal=decimal or ".",
    )
    inputs, _ = form.apply(table)
    splits = dict[str, Examples]()
    content = dict[str, str]()
    for split, (part, rows) in assigned.items():
        targets = own.parts[part].targets[rows]
        splits[split] = Examples(inputs[taken[split]], targets)
        whole = digests[taken[split]].tobytes() + targets.tobytes()
        content[split] = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return Source(
        name,
        splits,
        own.class_names,
        train_weights=None if own.weights is None else own.weights[assigned["train"][1]],
        table=form,
        groups={split: every.part(rows) for split, rows in taken.items() if every},
        content=content,
    )


def _strata(by: str, name: str, column: Column) -> Strata:
    """The groups or times of rows.

    Raises:
        InputError: The column has missing values, or no times.
    """
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
    check_whole(is_missing, f"column {shown(repr(name))} of config.split_by")
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
