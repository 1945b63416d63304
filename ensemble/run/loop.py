"""A run from its configuration to its result.

`train` configures. `run` sets up JAX, opens what surrounds a run (its workdir, its checkpoints,
signals, notes and the display), creates the task and the method, and has the runtime start or
restore the members, enlarge their number, move them and report.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from ensemble.config import Config, by_path, checked
from ensemble.config.builtin import METHODS, TASKS
from ensemble.data.catalogue import complete
from ensemble.errors import InputError, shown
from ensemble.notes import collected
from ensemble.run.progress import Clock, Display, open_display
from ensemble.run.results import TrainResult, result_of
from ensemble.runtime.method import Method
from ensemble.runtime.run import Run, enlarge
from ensemble.sharding import processes, startup
from ensemble.sharding.signals import Stop, stop_signals
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.workdir import Workdir, cannot_write, purpose_of


def train(
    config: ConfigDict | Mapping[str, Any],
    data: Any = None,
    workdir: str | None = None,
    *,
    show_progress: bool = True,
    **overrides: Any,
) -> TrainResult:
    """Trains an ensemble, or goes on training the one in `workdir`, and scores it.

    Args:
        config: keys with values, such as of `ensemble.default_config()`; the others have their
            defaults. Of several processes all call this with the same arguments, after
            `jax.distributed.initialize`.
        data: arrays to learn instead of `config.dataset`: `(X, y)`, or a mapping such as
            `{"inputs": X, "labels": y}`; `ensemble.data.data_forms` has all forms. Keys that
            `config` leaves out then are as in `configs/arrays.py`, in `configs/images.py` for
            pictures, and in `configs/tabular.py` for data frames.
        workdir: directory for checkpoints, metrics and results, local or `gs://`; a run that is
            already there is resumed. None keeps nothing.
        show_progress: whether to show on stderr, or below a notebook's cell, how far the run is:
            steps, epoch, scores and the time left. Warnings are logged in any case.
        **overrides: further keys. If they select another method, network, likelihood or data set,
            the keys that `config` has for the former one are dropped.

    Returns:
        The report and a predictor, which has the devices of this process; of several processes
        only the main one gets them.

    Raises:
        InputError: the configuration, the data or the workdir cannot be used.
        TrainingError: no member is alive.
        Interrupted: SIGTERM or Ctrl-C; a checkpoint has been written.
    """
    overrides = by_path(overrides)
    given, values = complete(by_path(config), overrides, data)
    return run(checked(values, overrides), lambda: given, workdir, show_progress)


def run(
    config: Config,
    make_data: Callable[[], Any],
    workdir: str | None,
    show_progress: bool,
) -> TrainResult:
    """Runs a configuration that is complete: creates, restores, advances and reports.

    Args:
        config: of `ensemble.config.build`.
        make_data: makes what the task is given as data, once the devices are set up.
        workdir: as of `train`.
        show_progress: as of `train`.
    """
    clock = Clock()
    startup.configure(config.num_devices, config.method)  # Of JAX: flags, devices, processes.
    with opened(config, workdir, show_progress) as where:
        task = create_task(config, make_data())
        processes.check_same("data", task.describe().get("fingerprint"))
        method = create_method(config, task)
        members = Run(method, range(method.num_members), where, clock)
        members.restore()
        if members.meta:
            enlarge(members)
        members.begin()
        members.go()
        result = result_of(members)
        result.workdir = workdir
        return result


def create_task(config: Config, data: Any) -> Any:
    """Creates what is to be learned: data, network and prior, or a density.

    Raises:
        InputError: they cannot be had, or do not suit each other.
    """
    return TASKS.call(config.task, config, data)


def create_method(config: Config, task: Any) -> Method:
    """Creates what moves the members.

    Raises:
        InputError: the task, or its data, do not suit the method.
    """
    # Loaded here: BlackJAX makes arrays when it is, which starts JAX: after `startup.configure`.
    method: Method = METHODS.call(config.method, config, task)
    return method


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


@contextmanager
def opened(config: Config, workdir: str | None, show_progress: bool) -> Iterator[Open]:
    """Opens a run in a workdir, or where nobody looks if that is None.

    Raises:
        InputError: The workdir holds another run, or is in use, or the system refuses a file.
    """
    with ExitStack() as stack:
        work = Workdir(stack.enter_context(TemporaryDirectory()) if workdir is None else workdir)

        def open_workdir() -> None:
            if purpose := purpose_of(work) or (work.selected() and "selection of members"):
                raise InputError(f"{work.path} holds a {purpose}. Choose another --workdir")
            stack.enter_context(work.opened())
            work.check_same_run(config)

        stop = stack.enter_context(stop_signals())
        processes.from_main(open_workdir)
        if workdir is not None and processes.count() > 1:
            # Refuses a workdir that is another folder in another process, in all of them.
            path = work.path / processes.from_main(lambda: f".seen_by_all_{secrets.token_hex(8)}")
            processes.from_main(path.touch)
            try:
                processes.check_same(f"files of --workdir={work.path}", path.exists())
            finally:
                if processes.is_main():
                    path.unlink()
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
