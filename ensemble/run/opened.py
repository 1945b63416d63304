"""Opens what surrounds a run: its workdir, its checkpoints, signals, notes and the display."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import ml_collections

from ensemble.errors import InputError, shown
from ensemble.notes import collected
from ensemble.run.progress import Display, open_display
from ensemble.sharding import processes
from ensemble.sharding.signals import Stop, stop_signals
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.trials import purpose_of
from ensemble.storage.workdir import Workdir, cannot_write


class Open(NamedTuple):
    """A run that is open: nobody else writes to its workdir.

    Attributes:
        work: Its workdir.
        checkpointer: Its checkpoints.
        keep: Whether anybody will read the workdir: else no checkpoints, no results.
        stop: Whether it is to end early.
        display: Display of its progress.
    """

    work: Workdir
    checkpointer: Checkpointer
    keep: bool
    stop: Stop
    display: Display

    def of_new_members(self, first: int, last: int) -> "Open":
        """The same for members that are yet to join, in a folder of their own."""
        work = self.work.of_new_members(first, last)
        return self._replace(work=work, checkpointer=Checkpointer(work.checkpoints, _NUM_KEPT))


_NUM_KEPT = 3
"""The newest checkpoints, which are kept."""


@contextlib.contextmanager
def opened(
    config: ml_collections.FrozenConfigDict, workdir: str | None, show_progress: bool
) -> Iterator[Open]:
    """Opens a run in a workdir, or where nobody looks if that is None.

    Raises:
        InputError: The workdir holds another run, or is in use, or the system refuses a file.
    """
    with contextlib.ExitStack() as stack:
        work = Workdir(
            stack.enter_context(tempfile.TemporaryDirectory()) if workdir is None else workdir
        )

        def open_workdir() -> None:
            if purpose := purpose_of(work) or (work.selected() and "selection of members"):
                raise InputError(f"{work.path} holds a {purpose}. Choose another --workdir")
            stack.enter_context(work.opened())
            work.check_same_run(config)

        stop = stack.enter_context(stop_signals())
        processes.from_main(open_workdir)
        if workdir is not None and processes.count() > 1:
            _check_is_shared(work)
        stack.enter_context(collected())
        display = stack.enter_context(open_display(show_progress and processes.is_main()))
        try:
            with Checkpointer(work.checkpoints, _NUM_KEPT) as checkpointer:
                yield Open(work, checkpointer, workdir is not None, stop, display)
        except OSError as error:
            if error.errno is None:  # Not of the system.
                raise
            where = str(error.filename or "")
            if os.path.isabs(where) and not where.startswith(os.fspath(work.path)):
                raise InputError(f"{shown(where)} cannot be used: {error.strerror}") from error
            raise cannot_write(work.path, str(error)) from error


def _check_is_shared(work: Workdir) -> None:
    """Refuses a workdir that is another folder in another process.

    Raises:
        InputError: It is; in all processes.
    """

    path = work.path / processes.from_main(lambda: f".seen_by_all_{secrets.token_hex(8)}")
    processes.from_main(path.touch)
    try:
        processes.check_same(f"files of --workdir={work.path}", path.exists())
    finally:
        if processes.is_main():
            path.unlink()
