"""Inputs to predict, as a command line names them: images, an npz file, or a whole data set."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble.data.catalogue import find_entry, given_examples
from ensemble.data.data_forms import read_npz
from ensemble.data.folders import unlabelled
from ensemble.data.image_form import parse_size
from ensemble.data.own_arrays import local_path
from ensemble.data.source import AnyStored, Request
from ensemble.data.splitting import POOL
from ensemble.errors import InputError
from ensemble.pytrees import ByName


class Part(NamedTuple):
    """Inputs by name.

    Attributes:
        names: [N], of examples that have none their numbers.
        inputs: [N, ...], which are read in slices, of a table as the network has them.
        prefix: of all names.
    """

    names: Sequence[Any]
    inputs: AnyStored
    prefix: str = ""


def inputs_of(paths: Sequence[str], config: ByName) -> list[Part]:
    """Finds inputs: images and folders of images, an npz file, or a data set by its name.

    Args:
        paths: Images and folders; or one npz file, `inputs` or the single array of which counts; or
            one data set, all examples of which count.
        config: Configuration of the run.

    Returns:
        The inputs by the parts of a data set; of all else a single part.

    Raises:
        InputError: There is no such folder or file, or it holds no examples, or bad ones.
    """
    size = parse_size(config.get("resize"))
    path = paths[0]
    if are_images(paths):
        return [Part(*unlabelled(paths, size))]
    if paths[1:]:
        raise InputError(
            f"{' '.join(paths)} are not all images and folders that are here; give such, or one "
            "npz file or data set alone"
        )
    entry = find_entry(path) if ":" in path else None
    if entry is None or not entry.given:
        arrays = read_npz(path)
        key = "inputs" if len(arrays) != 1 else next(iter(arrays))
        if key not in arrays:
            raise InputError(
                f"npz:{path} has the arrays {', '.join(sorted(arrays)) or '(none)'}; expected is "
                "inputs, or a single array"
            )
        inputs = np.atleast_1d(arrays[key])
        return [Part(range(len(inputs)), inputs)]
    request = Request(config.get("data_dir"), size=size if entry.can_resize else None)
    return [
        Part(range(len(one.inputs)), one.inputs, "" if part == POOL else f"{part}/")
        for part, one in given_examples(path, request).parts.items()
    ]


def are_images(paths: Sequence[str]) -> bool:
    """Whether all paths are of folders, or of files that are to be images."""
    return all(file.exists() and file.suffix != ".npz" for file in map(local_path, paths))
