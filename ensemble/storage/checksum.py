"""The checksum of the arrays of a checkpoint, of which each process has its own parts.

It is one CRC-32 over the arrays one after the other. A CRC is linear, so that each process can
compute what its own parts contribute, wherever they lie in the whole: the sum of all contributions
is what one process computes that has everything. Any division of the arrays gives the same number.
"""

import functools
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ensemble.sharding.parts import Distant, Parts

_POLYNOMIAL = 0xEDB88320  # Of zlib, lowest bit first.


def share_of(value: Parts | Distant | np.ndarray) -> int:
    """What the parts of this process contribute to the checksum; of other arrays, the whole."""
    if isinstance(value, np.ndarray):
        return share(value, None, value.shape)
    total = 0
    for index, part in value.parts if isinstance(value, Parts) else value.pieces():
        total ^= share(part, index, value.shape)
    return total


def checksum(arrays: Any, meta: Mapping[str, Any] | None = None) -> int:
    """Returns a CRC-32 of a tree of host arrays, and of what is said beside them.

    Args:
        arrays: of which names, types, shapes and bytes count.
        meta: JSON-ready; None: nothing.
    """
    shares = [share_of(leaf) for leaf in jax.tree.leaves(arrays)]
    return checksum_of_shares(arrays, shares, meta)


def checksum_of_shares(
    arrays: Any, shares: Sequence[int], meta: Mapping[str, Any] | None = None
) -> int:
    """Computes `checksum` of arrays whose contents are known by their shares.

    Args:
        arrays: a tree of what has a shape and a type.
        shares: of each of its leaves, the sum (exclusive or) of the shares of all its parts.
        meta: as of `checksum`.
    """
    total = 0
    if meta is not None:
        total = zlib.crc32(json.dumps(json.loads(json.dumps(meta)), sort_keys=True).encode())
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    for (path, leaf), one in zip(leaves, shares, strict=True):
        dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
        description = f"{jax.tree_util.keystr(path)} {dtype} {shape}"
        total = zlib.crc32(description.encode(), total)
        num_bytes = math.prod(shape) * dtype.itemsize
        total = _shifted_one(total, num_bytes) ^ one ^ _of_zeros(num_bytes)
    return total


def share(part: np.ndarray, index: Sequence[slice] | None, shape: Sequence[int]) -> int:
    """What a part of an array contributes to the CRC-32 of its bytes.

    Args:
        part: of the array.
        index: a slice of each axis, where the part lies; None for the whole.
        shape: of the array.
    """
    if part.size == 0:
        return 0
    starts = [0] * part.ndim if index is None else [one.start or 0 for one in index]
    split = [axis for axis in range(part.ndim) if part.shape[axis] != shape[axis]]
    first = split[-1] if split else 0  # From here on the part is contiguous in the whole.
    runs = np.ascontiguousarray(part).reshape(math.prod(part.shape[:first]), -1).view(np.uint8)
    zeros = _of_zeros(runs.shape[1])
    found = np.array([zlib.crc32(run.data) ^ zeros for run in runs], np.uint32)
    found = found.reshape(part.shape[:first])
    strides = [math.prod(shape[axis + 1 :]) * part.itemsize for axis in range(part.ndim)]
    for axis in reversed(range(first)):
        found = _folded(found, strides[axis])
    after = [
        stride * (size - start - own)
        for stride, size, start, own in zip(strides, shape, starts, part.shape, strict=True)
    ]
    return _shifted_one(int(found), sum(after))


def _folded(found: np.ndarray, stride: int) -> np.ndarray:
    """Joins the shares along the last axis, of what is so many bytes apart: two by two."""
    while found.shape[-1] > 1:
        if found.shape[-1] % 2:  # Zeros in front contribute nothing.
            found = np.concatenate([np.zeros_like(found[..., :1]), found], axis=-1)
        found = _applied(_shift(stride), found[..., 0::2]) ^ found[..., 1::2]
        stride *= 2
    return found[..., 0]


def _applied(operator: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A linear map [32] of bits, of uint32 of any shape."""
    found = np.zeros_like(values)
    for bit in range(32):
        found ^= operator[bit] * (values >> np.uint32(bit) & np.uint32(1))
    return found


@functools.lru_cache(maxsize=1024)
def _shift(num_bytes: int) -> np.ndarray:
    """What so many bytes of zeros do to a CRC that has no initial and no final inversion: [32]."""
    found = one_bit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = np.where(one_bit & 1, np.uint32(_POLYNOMIAL), one_bit >> np.uint32(1))
    number = 8 * num_bytes
    while number:
        if number & 1:
            found = _applied(power, found)
        power = _applied(power, power)
        number >>= 1
    return found


def _shifted_one(value: int, num_bytes: int) -> int:
    return int(_applied(_shift(num_bytes), np.array(value, np.uint32)))


@functools.lru_cache(maxsize=1024)
def _of_zeros(num_bytes: int) -> int:
    """The CRC-32 of so many zeros."""
    return _shifted_one(0xFFFFFFFF, num_bytes) ^ 0xFFFFFFFF
