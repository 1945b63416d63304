"""Splits of a table's rows by a column: groups are kept whole, or the latest rows are the test.

A random split of rows that come in groups, or drift over time, tests on rows that are almost known,
and what is then said of new groups, or of the future, is too good.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ensemble.errors import UserError, shown
from ensemble.notes import note
from ensemble.source import Strata
from ensemble.sources.batches import SPLIT_STREAM, seeded_generator
from ensemble.sources.splitting import POOL, SPLITS, Rows, carved_sizes
from ensemble.sources.tables import read_table
from ensemble.sources.tables.raw_columns import Column, Columns, kind_of, named

GROUP, TIME = "group", "time"


class SplitBy(NamedTuple):
    """What `config.split` says.

    Attributes:
        kind: `GROUP` or `TIME`.
        column: by name.
    """

    kind: str
    column: str


def parse_split(value: str) -> SplitBy | None:
    """Reads `config.split`: `group:COLUMN`, `time:COLUMN`, or nothing.

    Raises:
        UserError: it is none of these.
    """
    if not value:
        return None
    kind, _, column = value.partition(":")
    if kind not in (GROUP, TIME) or not column:
        raise UserError(
            f"config.split={value!r} must be group:COLUMN or time:COLUMN; leave it out for a "
            "random split"
        )
    return SplitBy(kind, column)


def strata_of(by: SplitBy, columns: Columns, name: str, date_format: str = "") -> Strata:
    """The groups or times of rows.

    Args:
        by: what `config.split` says.
        columns: of a table.
        name: of the data, for messages.
        date_format: of dates, beside ISO 8601.

    Raises:
        UserError: there is no such column, or it has missing values, or no times.
    """
    if by.column not in columns:
        raise UserError(
            f"config.split names the column {shown(repr(by.column))}, and {name} has "
            f"{named([*columns], 12)}"
        )
    column = columns[by.column]
    values, has_dates = column.texts(), False
    if by.kind == TIME:
        values, has_dates = _times(column, by.column, date_format)
    is_missing = values == "" if by.kind == GROUP else np.isnan(values)
    if is_missing.any():
        raise UserError(
            f"column {shown(repr(by.column))} of config.split is missing in {is_missing.sum()} "
            f"rows, first in row {is_missing.argmax() + 1}: fill it in or remove these rows"
        )
    return Strata(by.column, by.kind, values.astype(str if by.kind == GROUP else float), has_dates)


def _times(column: Column, name: str, date_format: str) -> tuple[np.ndarray, bool]:
    """[N] float64, days of dates, or numbers; and which of them."""
    kind, form = kind_of(column, name, date_format)
    if kind not in ("date", "number"):
        raise UserError(
            f"config.split='time:{name}' needs dates, such as 2024-12-31, or numbers; the column "
            f"holds {named(column.texts().tolist(), 1)}; set config.date_format if these are dates"
        )
    return read_table.parse(column.values, kind, name, form), kind == "date"


def assign_by(
    strata: Mapping[str, Strata],
    sizes: Mapping[str, int],
    name: str,
    seed: int,
    hold_out: bool,
) -> dict[str, Rows]:
    """Says which rows are of which split, as `splitting.assign_splits` does at random.

    Args:
        strata: of the rows of each given split, or of `POOL` alone.
        sizes: how many rows these have.
        name: of the data, for messages.
        seed: of the order of groups.
        hold_out: whether to carve the splits that are not given.

    Returns:
        Rows by split. Each carved one has about a tenth of the pool, or of the training rows, but
        at least one group, or one time. By time they come in the order train, validation,
        calibration, test.

    Raises:
        UserError: there are too few groups, or times.
    """
    part = POOL if POOL in strata else "train"
    splits = {split: Rows(split) for split in strata} | {"train": Rows(part)}
    absent = [split for split in SPLITS[1:] if split not in strata]
    if absent and hold_out:
        values = strata[part].values
        wanted = carved_sizes(sizes[part], absent, name)
        codes = np.unique(values, return_inverse=True)[1]
        if strata[part].kind == GROUP:  # In a random order, which equal ones share.
            codes = in_random_order(codes, seed)
        which = cut(codes, [*wanted.values()])
        if which is None:
            noun = "groups" if strata[part].kind == GROUP else "times"
            raise UserError(
                f"{name}: column {shown(repr(strata[part].column))} has {codes.max() + 1} {noun} "
                f"to carve {', '.join(wanted)} from; each needs at least one: leave config.split "
                "out, or give those splits"
            )
        splits |= {split: Rows(part, np.flatnonzero(which == i)) for i, split in enumerate(wanted)}
    _warn_of_shared(strata, name)
    return {split: splits[split] for split in SPLITS if split in splits}


def in_random_order(codes: np.ndarray, seed: int) -> np.ndarray:
    """Codes [N] from 0 without gaps, renamed at random."""
    number = int(codes.max()) + 1
    return seeded_generator(SPLIT_STREAM, seed).permutation(number)[codes]


def cut(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray | None:
    """The split [N] of each row: codes in order, consecutive ones to a split, none to two.

    Args:
        codes: [N], from 0 without gaps.
        sizes: that the splits should have, the last one at the end.

    Returns:
        None if there are fewer codes than splits.
    """
    counts = np.bincount(codes)
    if len(counts) < len(sizes):
        return None
    split = np.zeros(len(counts), np.int64)
    end = len(counts)
    for k in range(len(sizes) - 1, 0, -1):
        num_rows, begin = 0, end
        while begin > k and (begin == end or num_rows + counts[begin - 1] / 2 < sizes[k]):
            begin -= 1
            num_rows += counts[begin]
        split[begin:end], end = k, begin
    return split[codes]


def _warn_of_shared(strata: Mapping[str, Strata], name: str) -> None:
    """Notes it if given splits share groups, or the test is not later than training."""
    if not {"train", "test"} <= strata.keys():
        return
    train, test = strata["train"], strata["test"]
    if train.kind == TIME:
        if test.values.min() <= train.values.max():
            note(f"{name}: rows to test begin before the last row to learn, by {train.column}.")
        return
    shared = np.intersect1d(train.values, test.values).tolist()
    if shared:
        note(
            f"{name}: {len(shared)} groups of {train.column} are in both train and test, such as "
            f"{named(shared, 2)}: scores are of groups that were learned."
        )
