"""The folds of the training rows: which rows each member learns, and which it is held to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ensemble.data.source import Source, Strata
from ensemble.data.splitting import (
    cut,
    digest_examples,
    in_random_order,
    keep_together,
    stratified_split,
)
from ensemble.errors import InputError

MANY_ROWS = 50_000
"""From here on all members hold out the same tenth, unless it is said how many folds there are."""
NUM_FOLDS = 8
"""The most folds; fewer rows have fewer."""
_SHARE = 10
_PARTS = 4
"""The parts of a fold, of which the member before holds out the first too."""


class Folds(NamedTuple):
    """Which fold a training row is of; member k holds out the rows of fold k modulo `number`.

    It also holds out the rows of the next fold that are shared: these are what two members say of
    rows that they have not learned.

    Attributes:
        number: F.
        of_rows: [N] int, from 0 to F - 1; or F, of rows that nobody holds out.
        is_shared: [N] bool.
    """

    number: int
    of_rows: np.ndarray
    is_shared: np.ndarray

    def is_held_out(self, member: int) -> np.ndarray:
        """[N] bool: the rows that a member is held to."""
        after = self.of_rows == (member + 1) % self.number
        return (self.of_rows == member % self.number) | (after & self.is_shared)

    def held_out(self, member: int) -> np.ndarray:
        """The rows that a member is held to, ascending."""
        return np.flatnonzero(self.is_held_out(member))

    def learned(self, member: int) -> np.ndarray:
        """The rows that a member learns, ascending."""
        return np.flatnonzero(~self.is_held_out(member))

    @property
    def num_learned(self) -> int:
        """Rows that a member learns, of the member that learns the most."""
        return max(len(self.learned(fold)) for fold in range(self.number))


def make_folds(source: Source, number: int, seed: int) -> Folds:
    """Divides the training rows: a function of the data and the seed.

    Folds are alike in their classes, or in the ranks of their numbers, and equal inputs are in one
    of them. Where the splits of the data are by groups or by time, a group is in one fold, or a
    fold is a period, the latest first.

    Args:
        source: of the training rows.
        number: F; 1 makes one fold of a tenth of the rows; 0 as many as suit the rows, and at most
            as many as there are groups or times.
        seed: of the order.

    Raises:
        InputError: there are too few rows, groups or times.
    """
    num_rows, strata = source.sizes["train"], source.strata("train")
    if not number:
        number = 1 if num_rows >= MANY_ROWS else min(NUM_FOLDS, max(num_rows // 2, 2))
        if strata is not None:
            number = min(number, max(2, len(np.unique(strata.values))))
    if num_rows < 2 * number:
        raise InputError(
            f"{num_rows} training rows are too few for {number} folds; set "
            "config.method='deep_ensemble', or give more rows"
        )
    sizes = [len(fold) for fold in np.array_split(np.arange(num_rows), number)]
    if number == 1:
        tenth = max(1, num_rows // _SHARE)
        sizes = [tenth, num_rows - tenth]
    codes, parts = _random(source, sizes, seed) if strata is None else _by(strata, sizes, seed)
    of_rows = np.empty(num_rows, np.int64)
    is_shared = np.zeros(num_rows, bool)
    for fold, rows in enumerate(parts):
        of_rows[rows] = fold
        if fold < number > 1:
            own = codes[rows]
            first = own[: len(own) // _PARTS]
            if strata is not None:  # Whole groups, but not the only one.
                own = np.unique(own)
                first = own[: max(1, len(own) // _PARTS) * (len(own) > 1)]
            is_shared[rows] = np.isin(codes[rows], first)
    return Folds(number, of_rows, is_shared)


Parts = tuple[np.ndarray, list[np.ndarray]]
"""Codes [N] of what stays together, and the rows of each fold, the first of which are shared."""


def _random(source: Source, sizes: list[int], seed: int) -> Parts:
    """Makes folds that are alike in their targets."""
    targets = source.targets("train")
    classes = targets
    if targets.dtype.kind not in "iu":  # Blocks of as many rows as folds by rank, of the first one.
        first = targets.reshape(len(targets), -1)[:, 0]
        classes = np.argsort(np.argsort(first, kind="stable")) // len(sizes)
    parts = stratified_split(classes, sizes, seed)
    codes = digest_examples(source.splits["train"].inputs)
    return codes, keep_together(parts, codes)


def _by(strata: Strata, sizes: list[int], seed: int) -> Parts:
    """Makes folds of whole groups or times."""
    codes = np.unique(strata.values, return_inverse=True)[1]
    codes = codes.max() - codes if strata.groups is None else in_random_order(codes, seed)
    return codes, cut(strata, codes, sizes)
