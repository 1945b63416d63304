"""The source for inputs that are on disk, and may be larger than the memory.

Labels, and the indices of splits that are carved, are in memory. What inputs are read from says
`OwnData.inputs`: maps of npy files, or records.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import numpy as np

from ensemble.notes import note
from ensemble.source import Examples, Request, Source, Stored
from ensemble.sources import own_arrays
from ensemble.sources.own_arrays import OwnData
from ensemble.sources.splitting import Rows, assign_splits


@dataclasses.dataclass(frozen=True, eq=False)
class OnDisk(Source):
    """A data set whose inputs are on disk.

    Attributes:
        name: as `load_dataset` was given it.
        given: the examples as they were given, before splits are carved.
        rows: where the examples of each split are.
        class_names: one per class.
        shift: float32, broadcastable to an example; see `normalise`.
        scale: float32, broadcastable to an example; see `normalise`.
        train_weights: see `Source`.
        reads_ahead: see `Source`.
    """

    name: str
    given: OwnData
    rows: Mapping[str, Rows]
    class_names: tuple[str, ...] | None
    shift: np.ndarray
    scale: np.ndarray
    train_weights: np.ndarray | None = None
    reads_ahead: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example's inputs: (H, W, C) or (F,)."""
        return next(iter(self.given.inputs.values())).shape[1:]

    @property
    def input_dtype(self) -> np.dtype:
        """The type of inputs as they are read."""
        return self.given.input_dtype

    @property
    def target_dtype(self) -> np.dtype:
        """The type of targets."""
        return next(iter(self.given.targets.values())).dtype

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split."""
        return {split: len(targets) for split, targets in self._targets.items()}

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        """Copies examples out of the files."""
        part, rows = self.rows[split]
        stored, targets = self.given.inputs[part], self._targets[split][indices]
        if rows is None and isinstance(indices, slice):
            return Examples(np.array(stored[indices], self.input_dtype), targets)
        places = np.asarray(indices) if rows is None else rows[indices]
        inputs = _read(stored, places.ravel()).astype(self.input_dtype, copy=False)
        return Examples(inputs.reshape(*places.shape, *self.input_shape), targets)

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""
        return self._targets[split]

    def value_range(self, split: str) -> tuple[float, float]:
        """Does what `Source` says, without reading inputs where their summary is known."""
        part, rows = self.rows[split]
        if self.given.known is None:
            return super().value_range(split)
        known = self.given.known[part].at(rows)
        return known.low.min().item(), known.high.max().item()

    def hashed(self, split: str) -> Iterator[np.ndarray]:
        """Yields, as `Source` says, the digests of inputs where they are known."""
        part, rows = self.rows[split]
        if self.given.known is None:
            return super().hashed(split)
        return iter([self.given.known[part].at(rows).digests])

    @functools.cached_property
    def _targets(self) -> dict[str, np.ndarray]:
        return {
            split: self.given.targets[part] if rows is None else self.given.targets[part][rows]
            for split, (part, rows) in self.rows.items()
        }


def _read(stored: Stored, indices: np.ndarray) -> np.ndarray:
    """Reads by indices [n]; a map in the order of the file, as others do by themselves."""
    if not isinstance(stored, np.ndarray):
        return stored[indices]
    order = np.argsort(indices, kind="stable")
    found = np.empty((len(indices), *stored.shape[1:]), stored.dtype)
    found[order] = stored[indices[order]]
    return found


def split_on_disk(given: OwnData, name: str, request: Request, reads_ahead: bool = False) -> OnDisk:
    """Makes a data set of examples on disk: carves splits that are not given, by indices.

    Args:
        given: the examples.
        name: of the data set.
        request: how it is asked for.
        reads_ahead: see `Source`.

    Raises:
        UserError: there are too few examples to be split.
    """
    digests = given.digests if request.copies_together else None
    rows = assign_splits(given.targets, name, request.seed, request.hold_out, digests)
    zero, one = np.zeros((), np.float32), np.ones((), np.float32)
    raw = OnDisk(name, given, rows, given.class_names, zero, one, reads_ahead=reads_ahead)
    shift, scale = own_arrays.shift_and_scale(raw)
    own_arrays.warn_of_absent_classes(raw)
    weights = given.train_weights(rows["train"].indices)
    return dataclasses.replace(raw, shift=shift, scale=scale, train_weights=weights)


def split_decoded(given: OwnData, name: str, request: Request) -> OnDisk:
    """Does what `split_on_disk` does, for images that are too large for the memory, and says so."""
    note(
        f"{name} takes more than a quarter of the memory: its images are decoded about three times "
        "before training, and in every epoch. ensemble convert writes records, which "
        "are read faster."
    )
    return split_on_disk(given, name, request, reads_ahead=True)
