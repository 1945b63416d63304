"""Files of weights of anybody, npz or safetensors: arrays of numbers by name, and nothing else.

What a file claims is checked before memory is taken for it, as in `ensemble.storage.npz`.
https://huggingface.co/docs/safetensors describes the other format: a header in JSON and then bytes.
"""

import io
import json
import math
import os
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath

from ensemble.errors import UserError, in_one_line
from ensemble.storage import npz
from ensemble.storage.paths import is_remote

_MAX_HEADER = 2**23
"""Bytes of a safetensors file's header: parsed, they take up to twenty times the memory."""

_DTYPES: dict[str, Any] = {
    **{f"F{size}": np.dtype(f"<f{size // 8}") for size in (16, 32, 64)},
    **{f"I{size}": np.dtype(f"<i{size // 8}") for size in (8, 16, 32, 64)},
    **{f"U{size}": np.dtype(f"<u{size // 8}") for size in (8, 16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(bool),
}


def read_weights(path: epath.Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a file.

    Args:
        path: that ends in `.npz` or `.safetensors`.

    Raises:
        UserError: it is no such file, or holds what is no number, or more than memory does.
    """
    limit = npz.memory_bytes() // 2
    try:
        if not is_remote(path) and not os.path.isfile(path):  # A pipe or a device never ends.
            raise ValueError("it is not a regular file")
        size = path.stat().length
        if size > limit:
            raise ValueError(f"it has {size:,} bytes, more than the {limit:,} allowed here")
        content = path.read_bytes()
        if path.suffix == ".npz":
            arrays = npz.read_arrays(io.BytesIO(content), limit)
        else:
            arrays = _parse_safetensors(content)
        for name, array in arrays.items():
            if array.dtype.kind in "US" or array.dtype.kind == "c":
                raise ValueError(f"{name} has dtype {array.dtype}, not real numbers")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as weights: {in_one_line(error, 200)}; give an npz or a "
            "safetensors file of arrays by name"
        ) from None
    return arrays


def _parse_safetensors(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, views of its bytes.

    Raises:
        ValueError: it is none.
    """
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _MAX_HEADER):
        raise ValueError("it has no header of safetensors")
    try:
        header = json.loads(content[8 : 8 + length])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        places = {name: _place(entry) for name, entry in entries.items()}
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header is damaged ({in_one_line(error, 100)})") from None
    data, end, arrays = memoryview(content)[8 + length :], 0, {}
    for name, (dtype, shape, start, stop) in sorted(places.items(), key=lambda one: one[1][2:]):
        if start != end or stop > len(data) or stop - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} claims bytes {start} to {stop}, which are not its own")
        arrays[name] = np.frombuffer(data[start:stop], dtype).reshape(shape)
        end = stop
    return arrays


def _place(entry: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """The dtype, the shape, and the first byte and the end of an array's data."""
    shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise ValueError("its header has a size that is no whole number from 0")
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"it has arrays of {entry['dtype']}, not of {', '.join(_DTYPES)}")
    return _DTYPES[entry["dtype"]], shape, start, stop
