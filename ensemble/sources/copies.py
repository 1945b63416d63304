"""Examples that come more than once, found by digests.

Equal inputs are kept in one split. Copies are equal in inputs and target: in the rows of a shop,
inputs repeat by nature.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.notes import note
from ensemble.source import Stored, block_size

_MOST_LOST = 0.5
"""Share of a split's examples that keeping copies together may take from it."""
_FEWEST = 0.1
"""Different examples per example: where there are fewer, equal ones are other cases."""


class Digested(NamedTuple):
    """Examples without their inputs.

    Attributes:
        digests: [N], of the inputs, by `digest_examples`.
        targets: [N] or [N, ...].
    """

    digests: NDArray[np.uint64]
    targets: np.ndarray


def digest_examples(inputs: Stored, dtype: np.dtype) -> NDArray[np.uint64]:
    """Digests of 64 bits [N], which differ where inputs do, but once in 10^19 pairs.

    Args:
        inputs: [N, ...], perhaps a memory map: they are read in blocks.
        dtype: that inputs are learned in, and compared in.
    """
    digests = np.empty(len(inputs), np.uint64)
    size = block_size(inputs.shape[1:])
    for start in range(0, len(inputs), size):
        block = np.ascontiguousarray(inputs[start : start + size], dtype).reshape(
            -1, _length(inputs)
        )
        if dtype.kind == "f":
            block = block + 0  # -0 becomes 0.
        found = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in block)
        digests[start : start + len(block)] = np.frombuffer(found, np.uint64)
    return digests


def _length(inputs: Stored) -> int:
    return int(np.prod(inputs.shape[1:]))


def keep_together(
    parts: Sequence[np.ndarray], digests: NDArray[np.uint64], name: str
) -> list[np.ndarray]:
    """Moves examples of equal inputs into one split: that of the one which comes first in the data.

    Args:
        parts: the examples of each split, indices [size], together 0..N-1.
        digests: [N], by `digest_examples`.
        name: of the data, for the log.

    Returns:
        The parts, the very same if all inputs differ. They also stay as they are, with a warning,
        where few examples differ, as in a table of categories, or a split would lose most of its
        examples.
    """
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    num_copies = len(digests) - len(first)
    if not num_copies:
        return list(parts)
    order = np.concatenate(parts)
    split = np.empty(len(digests), np.int64)
    split[order] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    together = split[first[group]]
    moved = [order[together[order] == i] for i in range(len(parts))]
    pairs = zip(moved, parts, strict=True)
    is_poor = any(len(now) < _MOST_LOST * len(before) for now, before in pairs)
    if is_poor or len(first) < _FEWEST * len(digests):
        note(
            f"{name}: {num_copies} of {len(digests)} examples have the same inputs as others, too "
            "many for equal inputs to be kept in one split: scores are of inputs that were "
            "learned, too."
        )
        return list(parts)
    num_moved = np.count_nonzero(together != split)
    if num_moved:
        note(
            f"{name}: {num_copies} example{'s have' if num_copies > 1 else ' has'} the same inputs "
            f"as others; equal inputs are kept in one split, which moved {num_moved}."
        )
    return moved


def warn_of_learned(train: Digested, test: Digested, name: str) -> None:
    """Logs a warning if test examples are copies of training examples: in inputs and target.

    Args:
        train: the training examples.
        test: the test examples.
        name: of the data.
    """
    maybe = np.isin(test.digests, train.digests)
    if not maybe.any():  # As mostly; targets need no look then.
        return
    test = Digested(test.digests[maybe], test.targets[maybe])
    num_copies = np.count_nonzero(np.isin(_with_targets(test), _with_targets(train)))
    if num_copies:
        note(
            f"{name}: {num_copies} of {len(maybe)} test examples equal training examples in inputs "
            "and target: if these are the same cases, scores are too good, and one of the two "
            "splits should be without them."
        )


def _with_targets(examples: Digested) -> NDArray[np.uint64]:
    """Digests [N] of inputs and targets."""
    columns = [examples.digests, np.ascontiguousarray(examples.targets)]
    rows = [one.reshape(len(one), -1).view(np.uint8) for one in columns]
    return digest_examples(np.concatenate(rows, axis=1), np.dtype(np.uint8))
