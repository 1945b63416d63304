"""Opens what surrounds a run: its workdir, its checkpoints, signals, notes and the display."""

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ml_collections
import numpy as np

from ensemble.errors import InputError
from ensemble.notes import collected
from ensemble.run.progress import Display, open_display
from ensemble.run.resume import check_same_experiment
from ensemble.sharding import processes
from ensemble.sharding.signals import Stop, stop_signals
from ensemble.storage import identity
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.selection import is_selection
from ensemble.storage.trials import purpose_of
from ensemble.storage.workdir import Workdir, write_error


class Open(NamedTuple):
    """A run that is open: nobody else writes to its workdir.

    Attributes:
        work: where it lives.
        keep: whether anybody will read the workdir: else no checkpoints, no results.
        stop: whether it is to end early.
        display: shows how far it is.
        notes: what has been said of the run: the list grows.
    """

    work: Workdir
    keep: bool
    stop: Stop
    display: Display
    notes: Sequence[str]


@contextlib.contextmanager
def opened(
    config: ml_collections.FrozenConfigDict, workdir: str | None, show_progress: bool
) -> Iterator[Open]:
    """Opens a run in a workdir, or where nobody looks if that is None.

    Raises:
        InputError: the workdir holds another run, or is in use.
    """
    with contextlib.ExitStack() as stack:
        work = Workdir(
            stack.enter_context(tempfile.TemporaryDirectory()) if workdir is None else workdir
        )

        def open_workdir() -> None:
            if purpose := purpose_of(work) or (is_selection(work) and "selection of members"):
                raise InputError(f"{work.path} holds a {purpose}. Choose another --workdir")
            stack.enter_context(work.opened())
            check_same_experiment(config, work)

        stop = stack.enter_context(stop_signals())
        stop.is_kept = workdir is not None
        processes.from_main(open_workdir)
        if workdir is not None:
            _check_is_shared(work)
        notes = stack.enter_context(collected())
        display = stack.enter_context(open_display(show_progress and processes.is_main()))
        processes.check_same("settings of JAX", identity.flags())
        yield Open(work, workdir is not None, stop, display, notes)


def _check_is_shared(work: Workdir) -> None:
    """Refuses a workdir that is another folder in another process.

    Raises:
        InputError: it is; in all processes.
    """
    if processes.count() == 1:
        return

    def mark() -> str:
        name = f".seen_by_all_{secrets.token_hex(8)}"
        (work.path / name).write_text("")
        return name

    path = work.path / processes.from_main(mark)
    blind = np.flatnonzero(~processes.join_rows(np.array([path.exists()]))).tolist()
    if processes.is_main():
        path.unlink()
    if blind:
        raise InputError(
            f"--workdir={work.path} of process {', '.join(map(str, blind))} is not the folder of "
            "process 0; choose a directory on a disk that all processes share, or gs://BUCKET/RUN"
        )


NUM_KEPT = 3
"""The newest checkpoints, which are kept."""


@contextlib.contextmanager
def open_checkpoints(where: Open) -> Iterator[Checkpointer]:
    """Opens the checkpoints of a run.

    Args:
        where: the run is.

    Raises:
        InputError: the system refuses a file of the run.
    """
    work = where.work
    try:
        with Checkpointer(work.checkpoints, NUM_KEPT) as checkpointer:
            yield checkpointer
    except OSError as error:
        if error.errno is None:  # Not of the system.
            raise
        raise write_error(work.path, error) from error
