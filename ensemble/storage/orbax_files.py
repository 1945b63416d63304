"""Checkpoints on disk by Orbax.

This module alone imports it, which takes half a second: only where there is a checkpoint
(decision 0085).
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

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


def read(checkpoint: epath.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the arrays of a checkpoint, into memory, and what it has beside them."""
    handler = ocp.PyTreeCheckpointHandler()
    state = checkpoint / "state"
    whole = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        handler.metadata(state).tree,
        is_leaf=lambda leaf: hasattr(leaf, "shape"),
    )
    arrays = handler.restore(state, args=ocp.args.PyTreeRestore(restore_args=whole))
    return arrays, json.loads((checkpoint / "meta" / "metadata").read_bytes())


def unfinished(directory: epath.Path, number: int) -> epath.Path:
    """The folder of a checkpoint that is written and has no name yet.

    Args:
        directory: Directory of all checkpoints.
        number: Number of the checkpoint.
    """
    return next(directory.glob(f"{number}{UNFINISHED}*"), directory / str(number))
