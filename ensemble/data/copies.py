"""Examples that come more than once, found by digests.

Equal inputs are kept in one split. Copies are equal in inputs and target: in the rows of a shop,
inputs repeat by nature.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from ensemble.data.source import AnyStored, Stored, block_size
from ensemble.notes import note

_MOST_LOST = 0.5
"""Share of a split's examples that keeping copies together may take from it."""
_FEWEST = 0.1
"""Different examples per example: where there are fewer, equal ones are other cases."""


def digest_examples(inputs: AnyStored) -> NDArray:
    """Digests uint64 [N], which differ where inputs do, but once in 10^19 pairs.

    Args:
        inputs: [N, ...], perhaps on disk: they are read in blocks, unless they are `known`.
    """
    if isinstance(inputs, Stored) and inputs.known is not None:
        return inputs.known.digests
    digests = np.empty(len(inputs), np.uint64)
    size = block_size(inputs.shape[1:])
    for start in range(0, len(inputs), size):
        block = inputs[start : start + size]
        if block.dtype.kind == "f":
            block = block + 0  # -0 becomes 0.
        rows = np.ascontiguousarray(block).reshape(len(block), -1)
        found = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
        digests[start : start + len(block)] = np.frombuffer(found, np.uint64)
    return digests


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
    split[order] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    together = split[first[group]][order]
    moved = [order[together == i] for i in range(len(parts))]
    pairs = zip(moved, parts, strict=True)
    is_poor = any(len(now) < _MOST_LOST * len(before) for now, before in pairs)
    return parts if is_poor or len(first) < _FEWEST * len(digests) else moved


def note_copies(
    train: tuple[NDArray, NDArray],
    test: tuple[NDArray, NDArray],
    name: str,
) -> None:
    """Notes the share of test examples that stand in the training split, in inputs and target.

    Not of data of which few examples differ: there, equal ones are other cases.

    Args:
        train: Digests [N] by `digest_examples` and targets [N] or [N, D] of the training examples.
        test: The same of the test examples.
        name: of the data.
    """
    if len(np.unique(train[0])) < _FEWEST * len(train[0]):
        return
    tested, learned = (
        [*zip(digests[is_in].tolist(), map(str, targets[is_in].tolist()), strict=True)]
        for (digests, targets), is_in in (
            (test, np.isin(test[0], train[0])),
            (train, np.isin(train[0], test[0])),
        )
    )
    if num_copies := sum(map({*learned}.__contains__, tested)):
        size = len(test[0])
        note(
            f"{name}: {num_copies} of {size} test examples ({num_copies / size:.0%}) "
            "stand in the training split, too, equal in inputs and target: if they are the same "
            "cases, scores are too good, and one of the two splits should be without them."
        )
