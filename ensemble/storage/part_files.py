"""The arrays of a checkpoint on disk, of which each process has its own parts.

The files are those that Orbax writes of arrays that one process has: which process has written
what cannot be seen when they are read.

The checksum is one CRC-32 over the arrays one after the other. A CRC is linear, so that each
process can compute what its own parts contribute, wherever they lie in the whole: the sum of all
contributions is what one process computes that has everything. Any division of the arrays gives
the same number.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import math
import os
import secrets
import sys
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath

from ensemble.sharding import processes
from ensemble.sharding.parts import Distant, Index, Parts, blocks, within
from ensemble.storage.files import flush, flush_folders
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import UNFINISHED

PIECE_BYTES = 2**22
"""The largest piece of an array that is read or written at once."""
_AT_ONCE_BYTES = 2**24  # What is on its way to the disk, or from there.
_TOKENS = ".seen_by_all_"
_POLYNOMIAL = 0xEDB88320  # Of zlib, lowest bit first.


def is_shared(folder: epath.Path) -> bool:
    """Whether what each process writes in a folder is what all others read there.

    All processes call it. Each writes a token that only this run knows, and looks for everyone's.

    Args:
        folder: a path, which may be of another disk in every process.
    """
    if processes.count() == 1:
        return False
    token = processes.from_main(lambda: _choose_token(folder))
    ours = folder / f"{_TOKENS}{token}"
    own = ours / str(jax.process_index())
    with contextlib.suppress(OSError):
        # A folder that only process 0 has is not made here, nor anything in it.
        if is_remote(folder) or ours.exists():
            own.write_text(token)
    processes.wait_for_all("tokens written")
    sees = all(_holds(ours / str(k), token) for k in range(processes.count()))
    found = processes.join_rows(np.array([sees]))
    processes.from_main(lambda: _remove(ours))
    return bool(found.all())


def _choose_token(folder: epath.Path) -> str:
    for left in folder.glob(f"{_TOKENS}*"):  # By a run that was killed here.
        _remove(left)
    token = secrets.token_hex(16)
    with contextlib.suppress(OSError):
        (folder / f"{_TOKENS}{token}").mkdir()
    return token


def _holds(path: epath.Path, token: str) -> bool:
    try:
        return path.read_text() == token
    except OSError:
        return False


def _remove(folder: epath.Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmtree()


class _PartsHandler(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]
    """Writes `Parts` as Orbax writes arrays of NumPy, of which every process has a part."""

    async def serialize(
        self, values: Sequence[Parts], infos: Sequence[Any], args: Any = None
    ) -> Sequence[ocp.future.Future]:
        """Begins to write; what it returns waits until all is on disk."""
        writing = _write(values, infos)
        return [ocp.future.CommitFutureAwaitingContractedSignals(writing, name="parts")]


async def _write(values: Sequence[Parts], infos: Sequence[Any]) -> None:
    for info in infos:
        await info.await_path_creation()
    arrays = await _ended(map(_created, values, infos))
    batch, num_bytes = [], 0
    for value, array in zip(values, arrays, strict=True):
        grid = chunk_shape(value)
        for outer, part in value.parts:
            for piece in blocks(outer, grid):
                content = part[within(piece, outer)]
                # Awaited in batches: else the whole would be compressed before some is written.
                batch.append(
                    array[piece].write(content, can_reference_source_data_indefinitely=True)
                )
                num_bytes += content.nbytes
                if num_bytes >= _AT_ONCE_BYTES:
                    await _ended(batch)
                    batch, num_bytes = [], 0
    await _ended(batch)


async def _ended(working: Iterable[Awaitable[Any]]) -> list[Any]:
    """What all of these return; a failure of one is raised when none of them writes any more."""
    found = await asyncio.gather(*working, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


async def _created(value: Parts, info: Any) -> Any:
    spec = ocp.type_handlers.get_json_tspec_write(
        info,
        use_ocdbt=True,
        global_shape=value.shape,
        local_shape=chunk_shape(value),
        dtype=value.dtype,
        process_index=jax.process_index(),
    )
    describes = processes.is_main()  # The others take for granted what is said of the array.
    return await ts.open(
        ts.Spec({"dtype": value.dtype.name, **spec}),
        create=describes,
        open=True,
        assume_metadata=not describes,
        context=info.ts_context,
    )


def chunk_shape(value: Parts) -> tuple[int, ...]:
    """How an array is cut on disk: into pieces that no two processes share."""
    found, num_bytes = [1] * len(value.shape), value.dtype.itemsize
    for axis in reversed(range(len(value.shape))):
        size, fits = max(value.grid[axis], 1), max(PIECE_BYTES // num_bytes, 1)
        found[axis] = min(size, fits)
        if found[axis] < size and size < value.shape[axis]:  # All parts begin at pieces.
            number = next(k for k in itertools.count(-(-size // fits)) if size % k == 0)
            found[axis] = size // number
        num_bytes *= found[axis]
        if found[axis] < size:
            break
    return tuple(found)


def handler() -> ocp.PyTreeCheckpointHandler:
    """What Orbax writes trees of `Parts` by."""
    registry = ocp.type_handlers.create_type_handler_registry(
        (Parts, _PartsHandler()),
        (jax.Array, ocp.type_handlers.ArrayHandler()),  # Orbax warns where it is not there.
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


def barrier(writers: set[int]) -> Callable[..., None]:
    """How processes wait in Orbax's threads until all have written; who has failed waits for none.

    Orbax lets a process whose part has failed wait as well, before it says so, for others that wait
    for that part: twenty minutes.

    Args:
        writers: the processes that write a checkpoint together.
    """
    meet, home = ocp.multihost.get_barrier_sync_fn(processes=writers), threading.get_ident()

    def wait(*, key: str, timeout_ms: int) -> None:
        error = sys.exception()
        if error is not None and threading.get_ident() != home:  # Of that thread, in a `finally`.
            raise error
        meet(key=key, timeout_ms=timeout_ms)

    return wait


def flush_unfinished(directory: epath.Path) -> None:
    """Brings a checkpoint to the disk: Orbax calls it before that gets its name.

    TensorStore brings its files to the disk, Orbax does not: after a power cut its descriptions of
    the only checkpoint could be empty.

    Args:
        directory: of all checkpoints.
    """
    for unfinished in () if is_remote(directory) else directory.glob(f"*{UNFINISHED}"):
        for folder, _, names in os.walk(unfinished):
            for name in names:
                flush(os.path.join(folder, name))
            flush_folders([epath.Path(folder)])


def distant(state: epath.Path) -> Any:
    """The arrays of a checkpoint: a tree of `Distant`, of which nothing is read yet.

    Args:
        state: the folder of the arrays.
    """
    context = ocp.type_handlers.get_ts_context(use_ocdbt=True)

    def one(leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        info = ocp.type_handlers.ParamInfo(
            name=leaf.name, parent_dir=state, is_ocdbt_checkpoint=True, ts_context=context
        )
        spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=True)
        array = ts.open(ts.Spec(spec), open=True, context=context).result()
        grid: Any = array.chunk_layout.read_chunk.shape or ()
        read = functools.partial(_read, array, grid)
        return Distant(tuple(leaf.shape), np.dtype(leaf.dtype), grid, read)

    described = ocp.StandardCheckpointHandler().metadata(state).tree
    return jax.tree.map(one, described, is_leaf=lambda leaf: hasattr(leaf, "shape"))


def _read(array: Any, grid: tuple[int, ...], index: Index, found: np.ndarray) -> None:
    """Reads by the pieces that lie on disk, some at once."""
    batch: list[tuple[Index, Any]] = []
    num_bytes = 0
    for piece in blocks(index, grid):
        batch.append((within(piece, index), array[piece].read()))
        num_bytes += array[piece].domain.size * found.itemsize
        if num_bytes >= _AT_ONCE_BYTES:
            _fill(found, batch)
            batch, num_bytes = [], 0
    _fill(found, batch)


def _fill(found: np.ndarray, batch: list[tuple[Index, Any]]) -> None:
    for place, future in batch:
        found[place] = future.result()


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
    """As `checksum`, of arrays whose contents are known by their shares.

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
