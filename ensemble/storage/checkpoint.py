"""Checkpoints: everything the next step needs, written in the background, the newest few kept."""

import contextlib
import logging
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
from etils import epath

from ensemble.errors import InputError, in_one_line
from ensemble.sharding import processes
from ensemble.storage.files import make_folder
from ensemble.storage.manifest import Manifest
from ensemble.storage.workdir import FULL, cannot_write, numbers_in

logger = logging.getLogger("ensemble")

Saved = tuple[dict[str, Any], dict[str, Any]]
"""Arrays of a checkpoint, a nested dict, and its further content."""


def _orbax() -> ModuleType:
    # Slow, and not needed before the first checkpoint.
    from ensemble.storage import orbax_files

    return orbax_files


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
        self._began = 0.0
        self._seconds: float | None = 0.0

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        """Closes; but nobody waits for a part of a process that may have ended."""
        if error is None or processes.count() == 1:
            self.close()

    def save(self, step: int, arrays: Any, meta: dict[str, Any]) -> None:
        """Saves in the background; waits for the save before, if that is still going on.

        Args:
            step: Number of the checkpoint. It gets a larger number where it would not be the
                newest: an ensemble that has been enlarged is at the step that it was at.
            arrays: Nested dict of arrays of NumPy, not to be written to afterwards, or of JAX.
            meta: Further content, JSON-ready; that of process 0 counts.

        Raises:
            InputError: This checkpoint or the one before cannot be written.
        """

        with self._writing():
            if self._manager is None:
                processes.from_main(lambda: make_folder(self._directory))
                self._manager = _orbax().open_manager(self._directory, self._keep, self._written)
            self._manager.wait_until_finished()  # Of the number that `_written` enters.
            newest = processes.from_main(lambda: max(numbers_in(self._directory), default=-1))
            self._number = max(step, newest + 1)
            self._began = time.monotonic()
            self._seconds = None
            _orbax().save(self._manager, self._number, arrays, meta)

    @property
    def seconds(self) -> float:
        """Seconds that the last save of this process has taken, or takes so far; 0 before it."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

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
            with self._writing(), contextlib.closing(manager):
                manager.wait_until_finished()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns errors of a disk, in one of many forms, into one line."""
        try:
            yield
        except (InputError, jax.errors.JaxRuntimeError):  # The latter where a process is lost.
            raise
        except Exception as error:
            reasons = (words for words in FULL if words in str(error))
            raise cannot_write(self._workdir, next(reasons, in_one_line(error))) from None

    def _written(self) -> None:
        """Enters a checkpoint that is about to get its name; in a thread of Orbax's."""
        here = self._directory.name
        others = [name for name in self._manifest.entries() if name.startswith(f"{here}/")]
        gone = [name for name in others if not (self._workdir / name).exists()]
        path = self._directory / str(self._number)
        self._manifest.add(path, _orbax().unfinished(self._directory, self._number), gone)
        self._seconds = self.seconds

    def restore(self) -> Saved | None:
        """Reads the newest checkpoint that is whole; process 0 chooses it.

        Damaged ones that are newer are moved to the directory `corrupt_checkpoints`.

        Returns:
            `(arrays, meta)`, whole in each process; None if there are no checkpoints.

        Raises:
            InputError: There are checkpoints, and none is whole. They stay where they are.
        """

        def choose() -> int | None:
            number, damaged = self._newest()
            for path in damaged:
                aside = self._workdir / "corrupt_checkpoints" / path.name
                make_folder(aside.parent)
                if aside.exists():
                    aside.rmtree()
                path.rename(aside)
            return number

        number = processes.from_main(choose)
        return None if number is None else self._read(number)

    def read_latest(self) -> Saved | None:
        """Reads what `restore` does, in this process, into memory; and changes nothing.

        A run may be writing: where it has replaced those that were there, the new ones are read.
        """
        while True:
            there = numbers_in(self._directory)
            try:
                number, _ = self._newest()
                return None if number is None else self._read(number)
            except Exception as error:
                if numbers_in(self._directory) != there:
                    continue
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"{self._directory} cannot be read: {in_one_line(error)}; fix that and run the "
                    "same command"
                ) from None

    def _read(self, number: int) -> Saved:
        found: Saved = _orbax().read(self._directory / str(number))
        return found

    def _newest(self) -> tuple[int | None, list[epath.Path]]:
        """The number of the newest checkpoint that is whole, and the damaged ones after it."""
        self._manifest.entries()  # It is sound.
        damaged = list[epath.Path]()
        for number in numbers_in(self._directory):
            path = self._directory / str(number)
            with contextlib.suppress(InputError):
                if self._manifest.check(path):
                    return number, damaged
            if path.exists():  # The run that writes keeps the newest few.
                damaged.append(path)
                logger.warning(
                    "Checkpoint %d of %s is damaged, or of another run; the one before is used.",
                    number,
                    self._directory,
                )
        if damaged:
            raise InputError(
                f"{self._directory}: none of the {len(damaged)} checkpoints is whole and of this "
                f"run; restore {damaged[0]} from a copy, or start the run again in a new --workdir"
            )
        return None, []
