"""How examples that come without splits are split: by indices, so that inputs stay in place.

A random split of rows that come in groups, or drift over time, tests on rows that are almost known,
and what is then said of new groups, or of the future, is too good.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ensemble.data.batches import SPLIT_STREAM, seeded_generator
from ensemble.data.source import Examples, Request, Strata
from ensemble.errors import InputError, shown
from ensemble.notes import note

SPLITS = ("train", "validation", "calibration", "test")
_ALSO = {"val": "validation", "valid": "validation", "dev": "validation", "calib": "calibration"}
POOL = "pool"
"""The part of examples that come without splits."""


def split_of(name: str) -> str:
    """The split that a name means, such as `val`; empty if it means none."""
    return name if name in SPLITS else _ALSO.get(name, "")


Rows = tuple[str, np.ndarray | slice]
"""Part that the examples of a split are taken from, and their indices in it or a slice of all."""


def assign_splits(
    given: Mapping[str, Examples],
    name: str,
    request: Request,
    digests: Callable[[str], NDArray],
    strata: Mapping[str, Strata] | None = None,
) -> dict[str, Rows]:
    """Says which examples are of which split.

    Equal inputs are kept in one of the splits that are carved, unless few differ. Test examples
    that equal a training example in inputs and target are noted.

    Args:
        given: examples of each given split, or of `POOL` alone, of which targets count.
        name: of the data, for messages.
        request: with the seed of the carving, and whether splits that are not given are carved; if
            not, they do not exist.
        digests: of the inputs of a part, by `copies.digest_examples`.
        strata: of each given split: groups are kept whole, or the latest rows are the test, and
            equal inputs are not looked for.

    Returns:
        Their rows by split: of a given split all; each other one gets a tenth of the pool or of the
        training data. It is drawn at random and, if targets are classes, stratified; or is of at
        least one group, or of consecutive times, of which the latest are the test.

    Raises:
        InputError: there are too few examples, groups or times to carve from.
    """
    from ensemble.data import copies  # Of own data alone: sets by name have their splits.

    digests = functools.cache(digests)
    source = POOL if POOL in given else "train"
    every = slice(None)
    splits: dict[str, Rows] = {"train": (source, every)}
    splits |= {split: (split, every) for split in SPLITS if split in given}
    wanted = SPLITS[1:] if request.hold_out else SPLITS[1:2] * request.stops_early
    absent = [split for split in wanted if split not in given]
    if absent:
        values = given[source].targets
        sizes = carved_sizes(len(values), absent, name)
        if strata:
            parts = _by_strata(strata[source], sizes, name, request.seed)
        else:
            labels = values if values.dtype.kind == "i" else np.zeros(len(values), np.int32)
            parts = stratified_split(labels, [*sizes.values()], request.seed)
            parts = copies.keep_together(parts, digests(source))
        splits |= {split: (source, part) for split, part in zip(sizes, parts, strict=True)}
    if strata:
        _note_shared(strata, name)
    elif "test" in splits:
        learned, test = (
            (digests(part)[rows], given[part].targets[rows])
            for part, rows in (splits["train"], splits["test"])
        )
        copies.note_copies(learned, test, name)
    return {split: splits[split] for split in SPLITS if split in splits}


def carved_sizes(num_examples: int, absent: Sequence[str], name: str) -> dict[str, int]:
    """A tenth, but at least one, for each absent split; the rest is for training."""
    size = max(1, (num_examples + 5) // 10)
    num_train = num_examples - size * len(absent)
    if num_train < 1:
        raise InputError(
            f"{name} has {num_examples} examples to carve train, {', '.join(absent)} from; each "
            f"split needs at least one: give more examples, or give those splits"
        )
    return {"train": num_train, **dict.fromkeys(absent, size)}


def stratified_split(labels: NDArray, sizes: Sequence[int], seed: int) -> list[NDArray]:
    """Splits examples at random, every split with its share of every class.

    The j-th of a class's n shuffled examples, j from 0, gets the position (j + 1/2) / n: each class
    is spread evenly over 0..1, and the splits are consecutive runs of all examples in this order.
    So a class of few examples comes into the first split first (train, the largest), and every
    prefix of a split is stratified, too.

    Args:
        labels: `[N]`, int, from 0.
        sizes: of the splits; they sum to N.
        seed: not negative.

    Returns:
        The indices of each split, int `[size]`; together a permutation of 0..N-1.
    """
    order = seeded_generator(SPLIT_STREAM, seed).permutation(len(labels))
    counts = np.bincount(labels)
    # A stable sort keeps each class's examples in random order; the rank is the place among them.
    by_class = order[np.argsort(labels[order], kind="stable")]
    starts = np.cumsum(counts) - counts
    position = np.empty(len(labels))
    sorted_labels = labels[by_class]
    rank = np.arange(len(labels)) - starts[sorted_labels]
    position[by_class] = (rank + 0.5) / counts[sorted_labels]
    # Ties between classes are resolved by the random order.
    order = order[np.argsort(position[order], kind="stable")]
    return np.split(order, np.cumsum(sizes)[:-1])


def _by_strata(strata: Strata, sizes: Mapping[str, int], name: str, seed: int) -> list[NDArray]:
    """Splits rows by groups, in a random order, or by times."""
    codes = np.unique(strata.values, return_inverse=True)[1]
    if strata.groups is not None:
        codes = in_random_order(codes, seed)
    which = cut(codes, [*sizes.values()])
    if which is None:
        raise InputError(
            f"{name}: column {shown(repr(strata.column))} has {codes.max() + 1} {strata.kind}s to "
            f"carve {', '.join(sizes)} from; each needs at least one: leave config.split_by out, "
            "or give those splits"
        )
    return [np.flatnonzero(which == i) for i in range(len(sizes))]


def in_random_order(codes: NDArray, seed: int) -> NDArray:
    """Codes [N] from 0 without gaps, renamed at random."""
    number = int(codes.max()) + 1
    return seeded_generator(SPLIT_STREAM, seed).permutation(number)[codes]


def cut(codes: NDArray, sizes: Sequence[int]) -> NDArray | None:
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
        num_rows = 0
        begin = end
        while begin > k and (begin == end or num_rows + counts[begin - 1] / 2 < sizes[k]):
            begin -= 1
            num_rows += counts[begin]
        split[begin:end], end = k, begin
    return split[codes]


def _note_shared(strata: Mapping[str, Strata], name: str) -> None:
    """Notes it if given splits share groups, or the test is not later than training."""
    if not {"train", "test"} <= strata.keys():
        return
    column, kind, learned = strata["train"]
    test = strata["test"].values
    same = np.isin(test, learned) if kind == "group" else test <= learned.max()
    if same.any():
        note(
            f"{name}: {same.sum()} of {len(same)} rows to test are of {kind}s of {column} that are "
            f"learned, such as {shown(str(test[same][0]))}: scores are too good."
        )
