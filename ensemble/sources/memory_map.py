"""Data that are larger than the memory: arrays in npy files, mapped, never loaded.

A folder holds the arrays of `own_arrays` in a file each: `train_inputs.npy`, `train_labels.npy` and
so on. The files are looked through in blocks before training, and batches are read from them by
their indices. Labels, and the indices of splits that are carved, are in memory.
"""

from pathlib import Path

import numpy as np

from ensemble.errors import UserError, in_one_line
from ensemble.source import Request
from ensemble.sources import own_arrays
from ensemble.sources.data_forms import recognise
from ensemble.sources.on_disk import OnDisk, split_on_disk
from ensemble.sources.own_arrays import OwnData, local_path, max_data_bytes
from ensemble.storage.npz import Pickled, map_array

_SUFFIX = ".npy"


def load_npy(name: str, request: Request) -> OnDisk:
    """Makes a data set of a folder of npy files.

    Raises:
        UserError: a file cannot be used, or there are too few examples to be split.
    """
    return split_on_disk(given_npy(name, request), name, request)


def given_npy(name: str, request: Request) -> OwnData:
    """The examples of a folder of npy files, as they are given.

    Raises:
        UserError: a file cannot be used.
    """
    arrays = recognise(map_folder(name.partition(":")[2])).arrays
    return own_arrays.check_arrays(arrays, name)


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
