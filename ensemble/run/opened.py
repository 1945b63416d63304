"""Opens what surrounds a run: its workdir, its checkpoints, signals, notes and the display."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ml_collections

from ensemble.errors import UserError
from ensemble.notes import collected
from ensemble.run.own_writers import check_writers
from ensemble.run.progress import Display, open_display
from ensemble.run.resume import check_same_experiment
from ensemble.sharding import processes
from ensemble.sharding.signals import Stop, stop_signals
from ensemble.storage import identity, packages
from ensemble.storage.checkpoint import Checkpointer, is_shared
from ensemble.storage.comparison import is_comparison
from ensemble.storage.search import is_search
from ensemble.storage.selection import is_selection
from ensemble.storage.workdir import Workdir, write_error

logger = logging.getLogger("ensemble")


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
        UserError: the workdir holds another run, or is in use; or there is no such writer.
    """
    processes.from_main(lambda: check_writers(config))
    with contextlib.ExitStack() as stack:
        work = Workdir(
            stack.enter_context(tempfile.TemporaryDirectory()) if workdir is None else workdir
        )

        def open_workdir() -> None:
            if is_selection(work):
                raise UserError(
                    f"{work.path} selects members of other runs; choose another --workdir"
                )
            if is_search(work):
                raise UserError(
                    f"{work.path} holds a search of `ensemble fit`; choose another --workdir"
                )
            if is_comparison(work):
                raise UserError(
                    f"{work.path} holds a comparison of methods, whose runs are in its folder "
                    "cells; choose another --workdir"
                )
            stack.enter_context(work.opened())
            check_same_experiment(config, work)

        processes.from_main(open_workdir)
        stop = stack.enter_context(stop_signals())
        notes = stack.enter_context(collected())
        display = stack.enter_context(open_display(show_progress and processes.is_main()))
        processes.check_same("settings of JAX", identity.flags())
        processes.check_same("installed packages", packages.of_config(config.to_dict()))
        yield Open(work, workdir is not None, stop, display, notes)


@contextlib.contextmanager
def open_checkpoints(where: Open, num_kept: int) -> Iterator[Checkpointer]:
    """Opens the checkpoints of a run: each process has its own part, if all see one folder.

    Args:
        where: the run is.
        num_kept: how many of the newest are kept.

    Raises:
        UserError: the system refuses a file of the run.
    """
    work = where.work
    try:
        shared = where.keep and is_shared(work.path)
        if where.keep and processes.count() > 1:
            line = (
                "%s is one folder for all %d processes: each writes and reads its part of "
                "checkpoints."
                if shared
                else "%s is not one folder for all %d processes: process 0 writes checkpoints for "
                "all."
            )
            logger.info(line, work.path, processes.count())
        with Checkpointer(work.checkpoints, num_kept, shared) as checkpointer:
            yield checkpointer
    except OSError as error:
        if error.errno is None:  # Not of the system.
            raise
        raise write_error(work.path, error) from error
