"""How examples that come without splits are split: by indices, so that inputs stay in place.

A random split of rows that come in groups, or drift over time, tests on rows that are almost known,
and what is then said of new groups, or of the future, is too good. Equal inputs are kept in one
split. Copies are equal in inputs and target: in the rows of a shop, inputs repeat by nature.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.batches import SPLIT_STREAM, seeded_generator
from ensemble.data.source import AnyStored, Examples, Parts, Request, Splits, Stored, Strata, slices
from ensemble.errors import InputError
from ensemble.notes import note
from ensemble.pytrees import Function

SPLITS = ("train", "validation", "calibration", "test")
_ALSO = {"val": "validation", "valid": "validation", "dev": "validation", "calib": "calibration"}
POOL = "pool"
"""The part of examples that come without splits."""
_MOST_LOST = 0.5
"""Share of a split's examples that keeping copies together may take from it."""
_FEWEST = 0.1
"""Different examples per example: where there are fewer, equal ones are other cases."""


def split_of(name: str) -> str:
    """The split that a name means, such as `val`; empty if it means none."""
    return name if name in SPLITS else _ALSO.get(name, "")


def digest_examples(inputs: AnyStored) -> NDArray:
    """Digests uint64 [N], which differ where inputs do, but once in 10^19 pairs.

    Args:
        inputs: [N, ...], perhaps on disk: they are read in blocks, unless they are `known`.
    """
    if known := getattr(inputs, "known", None):
        return known.digests
    digests = np.empty(len(inputs), np.uint64)
    for here in slices(len(inputs), inputs.shape[1:]):
        block = inputs[here]
        if block.dtype.kind == "f":
            block = block + 0  # -0 becomes 0.
        rows = np.ascontiguousarray(block).reshape(len(block), -1)
        found = b"".join(blake2b(row.data, digest_size=8).digest() for row in rows)
        digests[here] = np.frombuffer(found, np.uint64)
    return digests


def carve(
    given: Parts,
    name: str,
    request: Request,
    digest: Callable[[Any], NDArray] = digest_examples,
    strata: Strata | None = None,
) -> tuple[Splits, NDArray | None]:
    """Divides examples into splits.

    Equal inputs are kept in one of the splits that are carved, unless few differ. Given test
    examples that equal a training example in inputs and target are noted.

    Args:
        given: checked examples; with `strata` their inputs are numbers of rows.
        name: of the data, for messages.
        request: with the seed of the carving, and whether splits that are not given are carved; if
            not, they do not exist.
        digest: of inputs.
        strata: of all rows: groups are kept whole, or the latest rows are the test, and equal
            inputs are not looked for.

    Returns:
        The examples of each split, and the weights of the training examples. Given splits are as
        given; each other one gets a tenth of the pool or of the training data. It is drawn at
        random and, if targets are classes, stratified; or is of at least one group, or of
        consecutive times, of which the latest are the test.

    Raises:
        InputError: there are too few examples, groups or times to carve from.
    """
    parts = dict(given.parts)
    source = POOL if POOL in parts else "train"
    inputs, targets = parts.pop(source)
    wanted = SPLITS[1:] if request.hold_out else SPLITS[1:2] * request.stops_early
    absent = [split for split in wanted if split not in parts]
    rows: Any = [slice(None)]
    if absent:
        size = max(1, (len(targets) + 5) // 10)
        num_train = len(targets) - size * len(absent)
        if num_train < 1:
            raise InputError(
                f"{name} has {len(targets)} examples to carve train, {', '.join(absent)} from; "
                "each split needs at least one: give more examples, or give those splits"
            )
        sizes = [num_train, *[size] * len(absent)]
        if strata:
            _, rows = cut(strata.part(inputs), sizes, request.seed)
        else:
            labels = targets if targets.dtype.kind == "i" else np.zeros(len(targets), np.int32)
            rows = stratified_split(labels, sizes, request.seed)
            rows = keep_together(rows, digest(inputs))
    for split, some in zip(["train", *absent], rows, strict=True):
        taken: Any = inputs.part(some) if isinstance(inputs, Stored) else inputs[some]
        parts[split] = Examples(taken, targets[some])
    if "test" in given.parts and not strata:
        _note_copies(parts["train"], parts["test"], digest, name)
    weights = None if given.weights is None else given.weights[rows[0]]
    return {split: parts[split] for split in SPLITS if split in parts}, weights


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
    starts = np.cumsum(counts) - counts
    # A stable sort keeps each class's examples in random order; the rank is the place among them.
    by_class = np.argsort(labels[order], kind="stable")
    classes = labels[order[by_class]]
    position = np.empty(len(labels))
    position[by_class] = (np.arange(len(labels)) - starts[classes] + 0.5) / counts[classes]
    # Ties between classes are resolved by the random order.
    order = order[np.argsort(position, kind="stable")]
    return np.split(order, np.cumsum(sizes)[:-1])


def cut(
    strata: Strata, sizes: Sequence[int], seed: int, latest_first: bool = False
) -> tuple[NDArray, list[NDArray]]:
    """Splits rows by whole groups, in random order, or by consecutive times.

    Args:
        strata: Groups or times of the rows, [N].
        sizes: Sizes that the splits should have, the last one at the end.
        seed: Seed of the order of groups.
        latest_first: If True, the latest times are in the first split.

    Returns:
        Codes of the groups or times, [N], from 0 without gaps; and the rows of each split, with
        consecutive codes.

    Raises:
        InputError: There are fewer groups or times than splits.
    """
    codes = np.unique(strata.values, return_inverse=True)[1]
    end = int(codes.max()) + 1
    if strata.groups is not None:
        codes = seeded_generator(SPLIT_STREAM, seed).permutation(end)[codes]
    elif latest_first:
        codes = codes.max() - codes
    counts = np.bincount(codes)
    if end < len(sizes):
        raise InputError(
            f"column {strata.column!r} has {end} {strata.kind}s, too few for "
            f"{len(sizes)} splits or folds: leave config.split_by out, give those splits, or lower "
            "config.kfold_bagging.folds"
        )
    split = np.zeros(end, np.int64)
    for k in range(len(sizes) - 1, 0, -1):
        num_rows = 0
        begin = end
        while begin > k and (begin == end or num_rows + counts[begin - 1] / 2 < sizes[k]):
            begin -= 1
            num_rows += counts[begin]
        split[begin:end] = k
        end = begin
    return codes, [np.flatnonzero(split[codes] == k) for k in range(len(sizes))]


def keep_together(parts: list[NDArray], digests: NDArray) -> list[NDArray]:
    """Moves examples of equal inputs into one split: that of the one which comes first in the data.

    Args:
        parts: the examples of each split, indices [size], together 0..N-1.
        digests: [N], by `digest_examples`.

    Returns:
        The parts; the given list if few examples differ, as in a table of categories, or if a split
        would lose most of its examples.
    """
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    order = np.concatenate(parts)
    split = np.empty(len(digests), np.int64)
    sizes = np.array([*map(len, parts)])
    split[order] = np.repeat(np.arange(len(parts)), sizes)
    together = split[first[group]][order]
    moved = [order[together == i] for i in range(len(parts))]
    is_poor = ([*map(len, moved)] < _MOST_LOST * sizes).any()
    return parts if is_poor or len(first) < _FEWEST * len(digests) else moved


def _note_copies(train: Examples, test: Examples, digest: Function, name: str) -> None:
    """Notes the share of test examples that stand in the training split, in inputs and target.

    Not of data of which few examples differ: there, equal ones are other cases.
    """
    learned = digest(train.inputs)
    if len(np.unique(learned)) < _FEWEST * len(learned):
        return
    learned = learned ^ digest_examples(train.targets)
    copies = np.isin(digest(test.inputs) ^ digest_examples(test.targets), learned)
    if copies.any():
        note(
            f"{name}: {copies.sum()} of {len(copies)} test examples ({copies.mean():.0%}) "
            "stand in the training split, too, equal in inputs and target: if they are the same "
            "cases, scores are too good, and one of the two splits should be without them."
        )
