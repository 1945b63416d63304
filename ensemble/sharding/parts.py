"""Arrays of which no process has more than its part, on their way to the disk and back."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

Index = tuple[slice, ...]
"""The place of a part in the whole: a slice with a start and a stop for each axis."""

_ALIGNMENT = 64
"""Bytes: at such addresses XLA:CPU takes an array of the host as it is, without a copy."""


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """What this process writes of an array.

    Attributes:
        shape: of the whole.
        dtype: of the whole.
        grid: the parts of all processes begin at multiples of it.
        parts: this process's own, and where they lie: copies, that nobody writes to.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    grid: tuple[int, ...]
    parts: tuple[tuple[Index, np.ndarray], ...]

    @property
    def size(self) -> int:
        """Numbers in this process's parts."""
        return sum(part.size for _, part in self.parts)

    @property
    def nbytes(self) -> int:
        """The bytes of this process's parts."""
        return self.size * self.dtype.itemsize


def own_parts(leaf: jax.Array, length: int) -> Parts:
    """Copies what this process writes of an array to the host: each part is one process's.

    Args:
        leaf: of which processes have different parts, or the same.
        length: of the first axis, without what pads it.
    """
    shape = (length, *leaf.shape[1:])
    grid = leaf.sharding.shard_shape(leaf.shape)
    parts = []
    for shard in leaf.addressable_shards:
        index = _resolved(shard.index, shape)
        if shard.replica_id == 0 and index[0].start < index[0].stop:
            parts.append((index, np.array(shard.data[: index[0].stop - index[0].start])))
    return Parts(shape, np.dtype(leaf.dtype), grid, tuple(parts))


def whole_parts(array: np.ndarray, writes: bool) -> Parts:
    """An array that one process writes whole, as all `Parts` are.

    Args:
        array: of the host, not to be written to afterwards.
        writes: whether this is the process.
    """
    whole = tuple(slice(0, size) for size in array.shape)
    return Parts(array.shape, array.dtype, array.shape, ((whole, array),) if writes else ())


@dataclasses.dataclass(frozen=True, eq=False)
class Distant:
    """An array on disk, of which a process reads what it needs.

    Attributes:
        shape: of the whole.
        dtype: of the whole.
        grid: at the multiples of which it is cut on disk.
        read: copies what lies at an index into an array of that shape.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    grid: tuple[int, ...]
    read: Callable[[Index, np.ndarray], None]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of it."""
        found = self[tuple(slice(0, size) for size in self.shape)]
        return found if dtype is None else found.astype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """What lies at slices of the first axes, in memory of its own."""
        given = index if isinstance(index, tuple) else (index,)
        rest = (slice(None),) * (len(self.shape) - len(given))
        within = _resolved((*given, *rest), self.shape)
        found = _aligned([one.stop - one.start for one in within], self.dtype)
        self.read(within, found)
        return found

    def pieces(self) -> Iterator[tuple[Index, np.ndarray]]:
        """All of it, a little at a time: places and contents."""
        for index in blocks(tuple(slice(0, size) for size in self.shape), self.grid):
            yield index, self[index]

    def padded(self, length: int) -> "Distant":
        """The array with its last row repeated, up to a length."""
        num_rows = len(self)

        def read(index: Index, found: np.ndarray) -> None:
            start, stop = index[0].start, index[0].stop
            first = min(start, num_rows - 1)
            last = max(min(stop, num_rows), first + 1)
            self.read((slice(first, last), *index[1:]), found[: last - first])
            found[last - first :] = found[last - first - 1]

        return Distant((length, *self.shape[1:]), self.dtype, self.grid, read)


def blocks(index: Index, grid: Sequence[int]) -> Iterator[Index]:
    """Cuts what lies at an index at the multiples of a grid, in the order of memory."""
    cuts = []
    for one, size in zip(index, grid, strict=True):
        first = one.start - one.start % size
        starts = [max(start, one.start) for start in range(first, one.stop, size)]
        cuts.append([slice(a, b) for a, b in zip(starts, [*starts[1:], one.stop], strict=True)])
    yield from itertools.product(*cuts)


def within(index: Index, outer: Index) -> Index:
    """An index of the whole, of what lies at another one that holds it."""
    return tuple(
        slice(one.start - base.start, one.stop - base.start)
        for one, base in zip(index, outer, strict=True)
    )


def _resolved(index: Sequence[slice], shape: tuple[int, ...]) -> Index:
    pairs = zip(index, shape, strict=True)
    return tuple(slice(*one.indices(size)[:2]) for one, size in pairs)


def _aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """An array that is not filled, at an address that suits devices."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes].view(dtype).reshape(shape)
