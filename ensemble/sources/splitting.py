"""How examples that come without splits are split: by indices, so that inputs stay in place."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.sources.batches import SPLIT_STREAM, seeded_generator

SPLITS = ("train", "validation", "calibration", "test")
_ALSO = {"val": "validation", "valid": "validation", "dev": "validation", "calib": "calibration"}
POOL = "pool"
"""The part of examples that come without splits."""


def split_of(name: str) -> str:
    """The split that a name means, such as `val`; empty if it means none."""
    return name if name in SPLITS else _ALSO.get(name, "")


class Rows(NamedTuple):
    """The examples of a split.

    Attributes:
        part: that they are taken from, a split as it was given or `POOL`.
        indices: int `[N]` into the part; None for all of it, in order.
    """

    part: str
    indices: np.ndarray | None = None


def assign_splits(
    targets: Mapping[str, np.ndarray],
    name: str,
    seed: int,
    hold_out: bool,
    digests: Callable[[str], NDArray[np.uint64]] | None,
) -> dict[str, Rows]:
    """Says which examples are of which split.

    Equal inputs are kept in one of the splits that are carved. Between splits as they were given
    copies are told: test examples that equal a training example in inputs and target.

    Args:
        targets: of each given split, or of `POOL` alone.
        name: of the data, for messages.
        seed: of the carving.
        hold_out: whether to carve the splits that are not given; if not, they do not exist.
        digests: of the inputs of a part, by `copies.digest_examples`; None: equal inputs are split
            as any examples, and copies are not looked for.

    Returns:
        Their rows by split: of a given split all; each other one gets a tenth of the pool or of the
        training data, at random and, if targets are classes, stratified.

    Raises:
        UserError: there are too few examples to carve from.
    """
    from ensemble.sources import copies  # Of own data alone: sets by name have their splits.

    source = POOL if POOL in targets else "train"
    splits = {split: Rows(split) for split in targets} | {"train": Rows(source)}
    absent = [split for split in SPLITS[1:] if split not in targets]
    if absent and hold_out:
        values = targets[source]
        sizes = carved_sizes(len(values), absent, name)
        labels = values if values.dtype.kind == "i" else np.zeros(len(values), np.int32)
        parts = stratified_split(labels, [*sizes.values()], seed)
        if digests is not None:
            parts = copies.keep_together(parts, digests(source), name)
        splits |= {split: Rows(source, part) for split, part in zip(sizes, parts, strict=True)}
    if digests is not None and {"train", "test"} <= targets.keys():
        train, test = (copies.Digested(digests(k), targets[k]) for k in ("train", "test"))
        copies.warn_of_learned(train, test, name)
    return {split: splits[split] for split in SPLITS if split in splits}


def carved_sizes(num_examples: int, absent: Sequence[str], name: str) -> dict[str, int]:
    """A tenth, but at least one, for each absent split; the rest is for training."""
    size = max(1, (num_examples + 5) // 10)
    num_train = num_examples - size * len(absent)
    if num_train < 1:
        raise UserError(
            f"{name} has {num_examples} examples to carve train, {', '.join(absent)} from; each "
            f"split needs at least one: give more examples, or give those splits"
        )
    return {"train": num_train, **dict.fromkeys(absent, size)}


def stratified_split(labels: np.ndarray, sizes: Sequence[int], seed: int) -> list[np.ndarray]:
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
