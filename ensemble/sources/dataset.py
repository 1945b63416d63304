"""A data set whole in host memory, and its splits."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ensemble.sources.batches import SPLIT_STREAM, seeded_generator
from ensemble.sources.movielens import Watches


class Split(NamedTuple):
    """Examples of one split.

    Attributes:
        inputs: images `[N, H, W, C]`, uint8 or (own data that is float) float32, or feature vectors
            `[N, F]`; not normalised.
        targets: int32 `[N]`, 0..C-1.
    """

    inputs: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in host memory.

    Attributes:
        name: as `load_dataset` was given it.
        splits: `train`, and those of `validation`, `calibration` and `test` that there are, in
            this order.
        num_classes: C.
        class_names: one per class.
        shift: float32, broadcastable to an example; see `normalise`.
        scale: float32, broadcastable to an example; see `normalise`.
    """

    name: str
    splits: dict[str, Split]
    num_classes: int
    class_names: tuple[str, ...]
    shift: np.ndarray
    scale: np.ndarray

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example: (H, W, C) or (F,)."""
        return self.splits["train"].inputs.shape[1:]

    @property
    def has_pictures(self) -> bool:
        """Whether an example is an image (H, W, C)."""
        return len(self.input_shape) == 3

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when any split's content does."""
        return _fingerprint(self.splits)

    @functools.cached_property
    def test_fingerprint(self) -> str | None:
        """The same of the test split alone; None where there is none."""
        return _fingerprint({"test": self.splits["test"]}) if "test" in self.splits else None


@dataclasses.dataclass(frozen=True, eq=False)
class WatchDataset(Dataset):
    """Pairs of a user and a movie, of class 1 if the user watched the movie.

    The split `train` has those that were watched, all others are known not to have been; `test` has
    those that are held out.

    Attributes:
        watches: the users, the movies, and who has watched what.
        observed: [N, M] uint8, 1 where user i has watched movie j, 2 where that is held out.
    """

    watches: Watches
    observed: np.ndarray


def _fingerprint(splits: Mapping[str, Split]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for split_name, split in splits.items():
        for array in split:
            digest.update(f"{split_name} {array.dtype} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


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
