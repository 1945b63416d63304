"""Checkpoints on disk by Orbax and TensorStore.

This module alone imports them, which takes half a second: only where there is a checkpoint
(decision 0085).
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath

from ensemble.sharding.transfer import Stored
from ensemble.storage.files import flush
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import UNFINISHED


def open_manager(
    directory: epath.Path, keep: int, written: Callable[[], None]
) -> ocp.CheckpointManager:
    """Opens what writes checkpoints, of all processes together.

    Args:
        directory: Directory of all checkpoints, which is there.
        keep: Number of the newest to keep.
        written: What the first process calls when all is written, before a checkpoint gets its
            name.
    """
    # All are named, for without names Orbax would let devices meet in a thread.
    writers = set(range(jax.process_count()))
    processes = ocp.options.MultiprocessingOptions(primary_host=0, active_processes=writers)
    manager = ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,  # Orbax refuses to, for some of several processes.
            # Threads that write wait 5 minutes for a directory that is to be made in the
            # background, and hold up the process's end, if it cannot be made.
            async_options=ocp.AsyncOptions(
                create_directories_asynchronously=False,
                barrier_sync_fn=_barrier(writers),
                post_finalization_callback=written,
            ),
            multiprocessing_options=processes,
        ),
        item_names=("state", "meta"),
        item_handlers={
            "state": ocp.PyTreeCheckpointHandler(multiprocessing_options=processes),
            "meta": ocp.JsonCheckpointHandler(multiprocessing_options=processes),
        },
    )
    # Else Orbax tells JAX step numbers at the point where the loop counts chunks: a signal
    # would stop the run at a chunk of that number.
    manager.reached_preemption = lambda step: False
    return manager


def save(manager: ocp.CheckpointManager, number: int, arrays: Any, meta: Any) -> None:
    """Begins to write a checkpoint.

    Args:
        manager: Manager of `open_manager`.
        number: Number of the checkpoint.
        arrays: Nested dict of arrays of NumPy, which the first process writes, or of JAX.
        meta: JSON-ready.
    """
    content = ocp.args.Composite(state=ocp.args.PyTreeSave(arrays), meta=ocp.args.JsonSave(meta))
    manager.save(number, args=content)


def read_meta(checkpoint: epath.Path) -> dict[str, Any]:
    """Reads what a checkpoint has beside its arrays."""
    return dict(json.loads((checkpoint / "meta" / "metadata").read_bytes()))


def stored(checkpoint: epath.Path) -> Any:
    """The arrays of a checkpoint: a tree of `Stored`, of which nothing is read yet."""
    context = ocp.type_handlers.get_ts_context(use_ocdbt=True)

    def one(leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        info = ocp.type_handlers.ParamInfo(
            name=leaf.name,
            parent_dir=checkpoint / "state",
            is_ocdbt_checkpoint=True,
            ts_context=context,
        )
        spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=True)
        array = ts.open(ts.Spec(spec), open=True, context=context).result()
        shape = tuple(leaf.shape)
        dtype = np.dtype(leaf.dtype)
        return Stored(shape, dtype, lambda index: array[index].read().result())

    tree = ocp.StandardCheckpointHandler().metadata(checkpoint / "state").tree
    return jax.tree.map(one, tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))


def _barrier(writers: set[int]) -> Callable[..., None]:
    """How processes wait in Orbax's threads until all have written; who has failed waits for none.

    Orbax lets a process whose part has failed wait as well, before it says so, for others that wait
    for that part: twenty minutes.
    """
    meet = ocp.multihost.get_barrier_sync_fn(processes=writers)
    home = threading.get_ident()

    def wait(*, key: str, timeout_ms: int) -> None:
        error = sys.exception()
        if error is not None and threading.get_ident() != home:  # Of that thread, in a `finally`.
            raise error
        meet(key=key, timeout_ms=timeout_ms)

    return wait


def unfinished(directory: epath.Path, number: int) -> epath.Path:
    """The folder of a checkpoint that is written and has no name yet, brought to the disk.

    TensorStore brings its files to the disk, Orbax does not: after a power cut its descriptions of
    the only checkpoint could be empty.

    Args:
        directory: Directory of all checkpoints.
        number: Number of the checkpoint.
    """
    if is_remote(directory):
        return directory / str(number)
    found = next(directory.glob(f"{number}{UNFINISHED}*"))
    for folder, _, names in os.walk(found):
        for name in (*names, ""):  # The last is the folder.
            flush(os.path.join(folder, name))
    return found
