"""Inputs to predict, as a command line names them: images, an npz file, or a whole data set."""

import contextlib
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble.errors import UserError
from ensemble.source import Request, Stored
from ensemble.sources.catalogue import find_entry, given_examples
from ensemble.sources.folders import read_unlabelled
from ensemble.sources.image_form import parse_size
from ensemble.sources.own_arrays import local_path, read_npz
from ensemble.sources.splitting import POOL
from ensemble.sources.tfds_records import data_dir_of_run
from ensemble.storage.memory import check_memory
from ensemble.storage.npz import read_shapes
from ensemble.storage.paths import is_remote


class Part(NamedTuple):
    """Inputs by name.

    Attributes:
        names: [N].
        inputs: [N, ...], which are read in slices, of a table as the network has them.
    """

    names: Sequence[str]
    inputs: Stored


class Numbers(Sequence[str]):
    """The names of examples that have none: numbers, which take no memory."""

    def __init__(self, count: int, prefix: str):
        self._numbers, self._prefix = range(count), prefix

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, slice):
            return [f"{self._prefix}{i}" for i in self._numbers[where]]
        return f"{self._prefix}{self._numbers[where]}"


def read_inputs(
    paths: Sequence[str], size: tuple[int, int] | None = None
) -> tuple[Sequence[str], np.ndarray]:
    """Reads image files and folders of images; or `inputs` or the single array of an npz file.

    Args:
        paths: of images and folders, or of one npz file.
        size: that images are brought to, as of `folders.read_images`.

    Returns:
        names [N], which are paths or indices, and examples [N, ...] as they are.

    Raises:
        UserError: there is no such folder or file, or it holds no examples, or bad ones.
    """
    if are_images(paths):
        return read_unlabelled(paths, size)
    path = next(path for path in paths if not _has_images(path))
    if not local_path(path).exists():
        raise UserError(f"there is no file or folder {local_path(path).absolute()}; check the path")
    arrays = read_npz(path)
    if len(paths) > 1:
        raise UserError(f"{path} is an npz file: give it alone, or images and folders of images")
    if "inputs" not in arrays and len(arrays) != 1:
        raise UserError(
            f"npz:{path} has the arrays {', '.join(sorted(arrays)) or '(none)'}; expected is "
            "inputs, or a single array"
        )
    inputs = arrays["inputs"] if "inputs" in arrays else next(iter(arrays.values()))
    return Numbers(len(np.atleast_1d(inputs)), ""), inputs


def are_images(paths: Sequence[str]) -> bool:
    """Whether all paths are of folders, or of files that are to be images."""
    return all(map(_has_images, paths))


def _has_images(path: str) -> bool:
    if is_remote(path):
        return False
    file = local_path(path)
    is_array = file.suffix == ".npz" or (file.is_file() and zipfile.is_zipfile(file))
    return file.exists() and not is_array


def num_inputs(paths: Sequence[str]) -> int:
    """How many inputs the headers of an npz file speak of; 0 for what is to be refused anyway."""
    if are_images(paths) or not local_path(paths[0]).is_file():
        return 0
    with contextlib.suppress(OSError, ValueError):
        shapes = read_shapes(local_path(paths[0]))
        shape = shapes["inputs"] if "inputs" in shapes else next(iter(shapes.values()), ())
        return shape[0] if shape else 0
    return 0


def given_parts(paths: Sequence[str], config: Mapping[str, Any]) -> dict[str, Part] | None:
    """All examples of a data set by its parts, if it is one that is named; else None."""
    entry = find_entry(paths[0])
    if entry is None or not entry.given or ":" not in paths[0]:
        return None
    if not is_remote(paths[0]) and local_path(paths[0]).exists():
        return None
    if len(paths) > 1:
        raise UserError(f"{paths[0]} is a data set: give it alone")
    if entry.kind_of_target:
        raise UserError(
            f"{paths[0]} is a table, which the ensemble has not learned: give records or arrays"
        )
    data_dir = data_dir_of_run(paths[0], config.get("data_dir"))
    request = Request(data_dir, size=parse_size(config.get("resize")) if entry.can_resize else None)
    found = given_examples(paths[0], request).inputs
    return {
        part: Part(Numbers(len(one), "" if part == POOL else f"{part}/"), one)
        for part, one in found.items()
    }


def all_of(parts: Mapping[str, Part], path: str) -> tuple[list[str], np.ndarray]:
    """All examples of a data set at once.

    Raises:
        UserError: memory cannot hold them.
    """
    needed = sum(math.prod(one.inputs.shape) * one.inputs.dtype.itemsize for one in parts.values())
    check_memory(2 * needed, f"the inputs of {path}", "it, or write predictions by --out")
    names = [name for one in parts.values() for name in one.names]
    return names, np.concatenate([one.inputs[:] for one in parts.values()])
