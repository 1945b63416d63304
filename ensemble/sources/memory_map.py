"""The tenant for data that are larger than the memory: arrays in npy files, mapped, never loaded.

A folder holds the arrays of `own_arrays` in a file each: `train_inputs.npy`, `train_labels.npy` and
so on. The files are looked through in blocks before training, and batches are read from them by
their indices. Labels, and the indices of splits that are carved, are in memory.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ensemble.errors import UserError, in_one_line
from ensemble.source import Examples, Request, Source
from ensemble.sources import own_arrays
from ensemble.sources.data_forms import as_arrays
from ensemble.sources.own_arrays import OwnData, local_path, max_data_bytes
from ensemble.sources.splitting import Rows, assign_splits
from ensemble.storage.npz import Pickled, map_array

_SUFFIX = ".npy"


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryMap(Source):
    """A data set whose inputs are on disk.

    Attributes:
        name: as `load_dataset` was given it.
        given: the arrays of the folder; inputs are memory maps.
        rows: where the examples of each split are.
        class_names: one per class.
        shift: float32, broadcastable to an example; see `normalise`.
        scale: float32, broadcastable to an example; see `normalise`.
        train_weights: see `Source`.
    """

    name: str
    given: OwnData
    rows: Mapping[str, Rows]
    class_names: tuple[str, ...] | None
    shift: np.ndarray
    scale: np.ndarray
    train_weights: np.ndarray | None = None

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
        """Copies examples out of the file, in its order: the disk is read forwards."""
        part, rows = self.rows[split]
        stored, targets = self.given.inputs[part], self._targets[split][indices]
        if rows is None and isinstance(indices, slice):
            return Examples(np.array(stored[indices], self.input_dtype), targets)
        places = np.asarray(indices) if rows is None else rows[indices]
        flat = places.ravel()
        order = np.argsort(flat, kind="stable")
        inputs = np.empty((len(flat), *self.input_shape), self.input_dtype)
        inputs[order] = stored[flat[order]]
        return Examples(inputs.reshape(*places.shape, *self.input_shape), targets)

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""
        return self._targets[split]

    @functools.cached_property
    def _targets(self) -> dict[str, np.ndarray]:
        return {
            split: self.given.targets[part] if rows is None else self.given.targets[part][rows]
            for split, (part, rows) in self.rows.items()
        }


def load_npy(name: str, request: Request) -> MemoryMap:
    """Makes a data set of a folder of npy files.

    Raises:
        UserError: a file cannot be used, or there are too few examples to be split.
    """
    given = own_arrays.check_arrays(as_arrays(map_folder(name.partition(":")[2])), name)
    digests = given.digests if request.copies_together else None
    rows = assign_splits(given.targets, name, request.seed, request.hold_out, digests)
    zero, one = np.zeros((), np.float32), np.ones((), np.float32)
    raw = MemoryMap(name, given, rows, given.class_names, zero, one)
    shift, scale = own_arrays.shift_and_scale(raw)
    own_arrays.warn_of_absent_classes(raw)
    weights = given.train_weights(rows["train"].indices)
    return dataclasses.replace(raw, shift=shift, scale=scale, train_weights=weights)


def map_folder(path: str) -> dict[str, np.ndarray]:
    """Maps the inputs of a folder, and reads what else it holds.

    Returns:
        The arrays by the names of their files; `own_arrays.check_arrays` checks them.

    Raises:
        UserError: there is no such folder, or a file is damaged, or memory cannot hold its labels.
    """
    root = local_path(path)
    if not root.is_dir():
        raise UserError(f"npy:{path}: there is no folder {root.absolute()}; check the path")
    arrays = {}
    for file in sorted(root.glob(f"*{_SUFFIX}")):
        name = file.name.removesuffix(_SUFFIX)
        array = _map_file(file, f"npy:{path}: {file.name}")
        is_large = array.ndim > 1 and name != "class_names"  # Inputs, by whatever name.
        arrays[name] = array if is_large else np.array(array)
    return arrays


def _map_file(file: Path, what: str) -> np.ndarray:
    if not file.is_file():
        raise UserError(f"{what} is no file; remove it or write it with numpy.save")
    try:
        array = map_array(file)
    except Pickled as error:
        raise UserError(
            f"{what}: {error}, which are never loaded since they can run code; save an array of "
            "numbers (class_names: of strings)"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{what} is damaged ({in_one_line(error)}); write it again") from error
    if array.ndim > 1 and not array.flags.c_contiguous:
        raise UserError(
            f"{what} is in Fortran's order, in which an example lies all over the file; save "
            "numpy.ascontiguousarray of it"
        )
    if not file.name.endswith(f"inputs{_SUFFIX}") and array.nbytes > max_data_bytes():
        raise UserError(
            f"{what} takes {array.nbytes:,} bytes, more than the {max_data_bytes():,} allowed "
            "here; only inputs may be larger than the memory"
        )
    return array
