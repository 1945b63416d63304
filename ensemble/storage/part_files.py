"""The arrays of a checkpoint on disk, of which each process has its own parts.

The files are those that Orbax writes of arrays that one process has: which process has written
what cannot be seen when they are read.

This module alone imports Orbax and TensorStore, which takes half a second: only where there is a
checkpoint (decision 0085).
"""

import asyncio
import contextlib
import functools
import itertools
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
_STATE = "state"  # The folder of the arrays of a checkpoint.
_AT_ONCE_BYTES = 2**24  # What is on its way to the disk, or from there.


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


class _Together:
    """Waits for a part of a checkpoint, and says that it failed when no part is written any more.

    Orbax forgets the others, and TensorStore makes anew the folders of a workdir that is gone.

    Args:
        own: the future of this part.
        writing: those of all parts; this one's is added.
    """

    def __init__(self, own: ocp.future.Future, writing: set[ocp.future.Future]):
        self._own, self._writing = own, writing
        writing.add(own)

    def result(self, timeout: float | None = None) -> Any:
        """Waits at most `timeout` seconds for each."""
        self._writing.discard(self._own)
        try:
            return self._own.result(timeout)
        except BaseException:
            while self._writing:
                with contextlib.suppress(Exception):
                    self._writing.pop().result(timeout)
            raise

    def cancel(self) -> bool | None:
        """Cancels this part."""
        return self._own.cancel()


def _together(handler: Any, writing: set[ocp.future.Future]) -> Any:
    """A handler of Orbax whose futures are `_Together`."""
    begin = handler.async_save

    async def async_save(*args: Any, **kwargs: Any) -> list[_Together]:
        return [_Together(one, writing) for one in await begin(*args, **kwargs) or ()]

    handler.async_save = async_save
    return handler


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


def open_manager(directory: epath.Path, keep: int, is_shared: bool) -> ocp.CheckpointManager:
    """Orbax's view of all checkpoints.

    Args:
        directory: of all checkpoints; it is there.
        keep: how many of the newest to keep.
        is_shared: whether every process has its own part, or this one has all.
    """
    writers = set(range(processes.count())) if is_shared else {jax.process_index()}
    types = ocp.type_handlers.create_type_handler_registry(
        (Parts, _PartsHandler()),
        (jax.Array, ocp.type_handlers.ArrayHandler()),  # Orbax warns where it is not there.
    )
    writing: set[ocp.future.Future] = set()
    manager = ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,  # Orbax refuses to, for some of several processes.
            # Threads that write wait 5 minutes for a directory that is to be made in the
            # background, and hold up the process's end, if it cannot be made.
            async_options=ocp.AsyncOptions(
                create_directories_asynchronously=False,
                barrier_sync_fn=barrier(writers),
                post_finalization_callback=functools.partial(flush_unfinished, directory),
            ),
            # All are named, for without names Orbax would let devices meet in a thread.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=0 if is_shared else jax.process_index(),
                active_processes=writers,
            ),
        ),
        item_names=(_STATE, "meta"),
        item_handlers={
            _STATE: _together(ocp.PyTreeCheckpointHandler(type_handler_registry=types), writing),
            "meta": _together(ocp.JsonCheckpointHandler(), writing),
        },
    )
    # Else Orbax tells JAX step numbers at the point where the loop counts chunks: a signal
    # would stop the run at a chunk of that number.
    manager.reached_preemption = lambda step: False
    return manager


def save(manager: ocp.CheckpointManager, number: int, parts: Any, meta: Any) -> None:
    """Begins to write a checkpoint.

    Args:
        manager: of `open_manager`.
        number: of the checkpoint.
        parts: a tree of `Parts`.
        meta: JSON-ready.
    """
    state = ocp.args.PyTreeSave(parts, ocdbt_target_data_file_size=2 * PIECE_BYTES)
    args = ocp.args.Composite(state=state, meta=ocp.args.JsonSave(meta))
    manager.save(number, args=args)


def read_meta(manager: ocp.CheckpointManager, number: int) -> Any:
    """Reads what a checkpoint has beside its arrays."""
    return manager.restore(number, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta


def read_arrays(manager: ocp.CheckpointManager, number: int) -> Any:
    """Reads all arrays of a checkpoint."""
    args = ocp.args.Composite(state=ocp.args.PyTreeRestore())
    return jax.tree.map(np.asarray, manager.restore(number, args=args).state)


def described(checkpoint: epath.Path) -> Any:
    """A tree of what Orbax says of the arrays of a checkpoint, with shapes and types."""
    return ocp.StandardCheckpointHandler().metadata(checkpoint / _STATE).tree


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


def distant(checkpoint: epath.Path) -> Any:
    """The arrays of a checkpoint: a tree of `Distant`, of which nothing is read yet.

    Args:
        checkpoint: the folder of one.
    """
    context = ocp.type_handlers.get_ts_context(use_ocdbt=True)

    def one(leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        info = ocp.type_handlers.ParamInfo(
            name=leaf.name,
            parent_dir=checkpoint / _STATE,
            is_ocdbt_checkpoint=True,
            ts_context=context,
        )
        spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=True)
        array = ts.open(ts.Spec(spec), open=True, context=context).result()
        grid: Any = array.chunk_layout.read_chunk.shape or ()
        read = functools.partial(_read, array, grid)
        return Distant(tuple(leaf.shape), np.dtype(leaf.dtype), grid, read)

    return jax.tree.map(one, described(checkpoint), is_leaf=lambda leaf: hasattr(leaf, "shape"))


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
