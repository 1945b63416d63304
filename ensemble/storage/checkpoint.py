"""Checkpoints: everything the next step needs, written in the background, the newest few kept.

Orbax takes half a second to import: functions do, and only where there is a checkpoint (decision
0085).
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import jax
import numpy as np
from etils import epath

from ensemble.errors import InputError, in_one_line, logger
from ensemble.sharding import processes
from ensemble.storage.files import make_folder
from ensemble.storage.manifest import Json, Manifest
from ensemble.storage.workdir import UNFINISHED, cannot_write, numbers_in

_FULL = [os.strerror(one) for one in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
"""What the system says of a disk that is full, or has become so for this user."""

Saved = tuple[Json, Json]
"""Arrays of a checkpoint, a nested dict, and its further content."""


class Checkpointer:
    """Numbered checkpoints of `(arrays, meta)` in one directory of a workdir, by Orbax.

    Of several processes, each writes its own part: all call every method but `read_latest`, in the
    same order.

    Args:
        directory: Directory, created when the first checkpoint is saved.
        keep: Number of the newest to keep.
    """

    def __init__(self, directory: epath.Path, keep: int = 1):
        self._directory = directory
        self._keep = keep
        self._workdir = directory.parent
        self._manifest = Manifest(self._workdir)
        self._number = 0
        self._manager: Any = None
        self._began = time.monotonic()
        self._ended: float | None = self._began

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        """Closes; but nobody waits for a part of a process that may have ended."""
        if error is None or processes.count() == 1:
            self.close()

    def save(self, step: int, arrays: Any, meta: Json) -> None:
        """Saves in the background; waits for the save before, if that is still going on.

        Args:
            step: Number of the checkpoint. It gets a larger number where it would not be the
                newest: an ensemble that has been enlarged is at the step that it was at.
            arrays: Nested dict of arrays of NumPy, not to be written to afterwards, or of JAX.
            meta: Further content, JSON-ready; that of process 0 counts.

        Raises:
            InputError: This checkpoint or the one before cannot be written.
        """
        import orbax.checkpoint as ocp  # As the module says.

        with self._writing():
            self._manager = self._manager or self._open()
            self._manager.wait_until_finished()  # Of the number that `_written` enters.
            newest = processes.from_main(lambda: max(numbers_in(self._directory), default=-1))
            self._number = max(step, newest + 1)
            self._began = time.monotonic()
            self._ended = None
            state = ocp.args.PyTreeSave(arrays)
            content = ocp.args.Composite(state=state, meta=ocp.args.JsonSave(meta))
            self._manager.save(self._number, args=content)

    def _open(self):
        """Opens what writes checkpoints, of all processes together."""
        import orbax.checkpoint as ocp  # As the module says.

        processes.from_main(lambda: make_folder(self._directory))
        # All are named, for without names Orbax would let devices meet in a thread.
        writers = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes=set(range(processes.count()))
        )
        manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=self._keep,
                create=False,  # Orbax refuses to, for some of several processes.
                # Threads that write wait 5 minutes for a directory that is to be made in the
                # background, and hold up the process's end, if it cannot be made.
                async_options=ocp.AsyncOptions(
                    create_directories_asynchronously=False,
                    post_finalization_callback=self._written,
                ),
                multiprocessing_options=writers,
            ),
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(multiprocessing_options=writers),
                "meta": ocp.JsonCheckpointHandler(multiprocessing_options=writers),
            },
        )
        # Else Orbax tells JAX step numbers at the point where the loop counts chunks: a signal
        # would stop the run at a chunk of that number.
        manager.reached_preemption = lambda step: False
        return manager

    def _written(self) -> None:
        """Enters a checkpoint that is about to get its name; in a thread of process 0."""
        here = self._directory.name
        others = [name for name in self._manifest.entries() if name.startswith(f"{here}/")]
        gone = [name for name in others if not (self._workdir / name).exists()]
        path = self._directory / str(self._number)
        unfinished = self._directory.glob(f"{self._number}{UNFINISHED}*")
        self._manifest.add(path, next(unfinished, path), gone)
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds that the last save has taken, or takes so far; 0 before it. Process 0 knows."""
        return (self._ended or time.monotonic()) - self._began

    def wait(self) -> None:
        """Waits until what was saved is on disk.

        Raises:
            InputError: It could not be written.
        """
        if self._manager is not None:
            with self._writing():
                self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and frees the background threads.

        Raises:
            InputError: What was saved could not be written.
        """
        manager = self._manager
        self._manager = None
        if manager is not None:
            with self._writing(), closing(manager):
                manager.wait_until_finished()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns errors of a disk, in one of many forms, into one line."""
        try:
            yield
        except (InputError, jax.errors.JaxRuntimeError):  # The latter where a process is lost.
            raise
        except Exception as error:
            reasons = (words for words in _FULL if words in str(error))
            raise cannot_write(self._workdir, next(reasons, in_one_line(error))) from None

    def restore(self) -> Saved | None:
        """Reads the newest checkpoint that is whole; process 0 chooses it.

        Damaged ones that are newer are moved to the directory `corrupt_checkpoints`.

        Returns:
            `(arrays, meta)`, whole in each process; None if there are no checkpoints.

        Raises:
            InputError: There are checkpoints, and none is whole. They stay where they are.
        """
        return self._read(processes.from_main(lambda: self._newest(moves=True)))

    def read_latest(self) -> Saved | None:
        """Reads what `restore` does, in this process, into memory; and changes nothing.

        A run may be writing: where it has replaced those that were there, the new ones are read.

        Raises:
            InputError: There are checkpoints, and none is whole.
        """
        while True:
            there = numbers_in(self._directory)
            try:
                return self._read(self._newest())
            except Exception as error:
                if numbers_in(self._directory) != there:
                    continue
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"{self._directory} cannot be read: {in_one_line(error)}; fix that and run the "
                    "same command"
                ) from None

    def _read(self, number: int | None) -> Saved | None:
        if number is None:
            return None
        import orbax.checkpoint as ocp  # As the module says.

        path = self._directory / str(number)
        handler = ocp.PyTreeCheckpointHandler()
        whole = jax.tree.map(
            lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
            handler.metadata(path / "state").tree,
            is_leaf=lambda leaf: hasattr(leaf, "shape"),
        )
        how = ocp.args.PyTreeRestore(restore_args=whole)
        meta = json.loads((path / "meta" / "metadata").read_bytes())
        return handler.restore(path / "state", args=how), meta

    def _newest(self, moves: bool = False) -> int | None:
        """The number of the newest checkpoint that is whole; None: there are no checkpoints.

        Args:
            moves: If True, damaged ones that are newer are put aside.
        """
        self._manifest.entries()  # It is sound.
        damaged = list[epath.Path]()
        for number in numbers_in(self._directory):
            path = self._directory / str(number)
            with suppress(InputError):
                if self._manifest.check(path):
                    break
            if path.exists():  # The run that writes keeps the newest few.
                damaged.append(path)
                logger.warning(
                    "Checkpoint %d of %s is damaged, or of another run; the one before is used.",
                    number,
                    self._directory,
                )
        else:
            if damaged:
                raise InputError(
                    f"{self._directory}: none of the {len(damaged)} checkpoints is whole and of "
                    f"this run; restore {damaged[0]} from a copy, or start the run again in a new "
                    "--workdir"
                )
            return None
        for path in damaged if moves else ():
            aside = self._workdir / "corrupt_checkpoints" / path.name
            make_folder(aside.parent)
            if aside.exists():
                aside.rmtree()
            path.rename(aside)
        return number
