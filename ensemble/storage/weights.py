"""Weights of networks in files of anybody: npz and safetensors, arrays by name."""

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath

from ensemble.errors import InputError, in_one_line, listed
from ensemble.pytrees import ByName
from ensemble.storage.memory import memory_bytes
from ensemble.storage.npz import Arrays, read_arrays


def fitting(
    found: Arrays,
    shapes: ByName,
    names: Collection[str],
    what: str,
    model: str,
) -> Arrays:
    """Takes arrays for leaves of a network, in their types.

    Args:
        found: [L, ...] by name.
        shapes: of the leaves, with their dtypes, by name.
        names: of those that are asked for.
        what: where the arrays are from, for messages.
        model: name of the network, for messages.

    Raises:
        InputError: some are missing, of another shape, or not finite.
    """
    faults = []
    for name in sorted(names):
        here = list(shapes[name].shape)
        there = list(found[name].shape[1:]) if name in found else "missing"
        if there != here:
            faults.append(f"{name} is {there} there and {here} here")
        elif not np.isfinite(found[name].astype(shapes[name].dtype)).all():
            faults.append(f"{name} has NaN or infinities")
    if faults:
        raise InputError(
            f"{what} does not fit config.model={model!r}: {listed(faults, separator='; ')}; give "
            "weights of this network, for inputs of this shape, by its names"
        )
    return {name: found[name].astype(shapes[name].dtype) for name in sorted(names)}


def read(path: epath.Path, what: str) -> Arrays:
    """Reads the arrays of a file of anybody, by the paths of a network's parameters: with `/`.

    Args:
        path: Path that ends in `.npz` or `.safetensors`.
        what: Where the path was given, for messages.

    Raises:
        InputError: There is no such file, or it has other than numbers, or more than memory holds.
    """
    limit = memory_bytes() // 4  # Its arrays are copied.
    try:
        with path.open("rb") as file:
            is_npz = path.suffix == ".npz"
            arrays = read_arrays(file, limit) if is_npz else _read_safetensors(file.read(limit))
        for name, array in arrays.items():
            if array.dtype.kind in "USc":
                raise ValueError(f"{name} has dtype {array.dtype}, not real numbers")
    except Exception as error:  # A file of anybody may be damaged in any way.
        raise InputError(
            f"{what} cannot be read as weights: {in_one_line(error, 200)}; give an npz or a "
            "safetensors file of arrays by name"
        ) from None
    return {name.replace(".", "/").removeprefix("params/"): one for name, one in arrays.items()}


def _read_safetensors(content: bytes) -> Arrays:
    import safetensors  # Few runs have such a file.

    return {
        name: np.frombuffer(one["data"], _dtype(one["dtype"])).reshape(one["shape"])
        for name, one in safetensors.deserialize(content)
    }


def _dtype(name: str) -> Any:
    """The type of arrays by its name in safetensors files, such as `F32` and `BOOL`."""
    special = {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}
    return special.get(name) or np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}")
