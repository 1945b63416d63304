"""A run from its configuration to its result.

`train` configures. `run` sets up JAX, creates the task and the method, and has the runtime start or
restore the members, enlarge their number, move them and report.
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from ensemble.config import by_path, checked
from ensemble.config.builtin import METHODS, TASKS
from ensemble.data.catalogue import complete
from ensemble.run.opened import opened
from ensemble.run.progress import Clock
from ensemble.run.results import TrainResult, result_of
from ensemble.runtime.growth import enlarge
from ensemble.runtime.method import Method
from ensemble.runtime.run import Run
from ensemble.sharding import processes, startup


def train(
    config: ml_collections.ConfigDict | Mapping[str, Any],
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
    config: ml_collections.FrozenConfigDict,
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


def create_task(config: ml_collections.FrozenConfigDict, data: Any) -> Any:
    """Creates what is to be learned: data, network and prior, or a density.

    Raises:
        InputError: they cannot be had, or do not suit each other.
    """
    return TASKS.call(config.task, config, data)


def create_method(config: ml_collections.FrozenConfigDict, task: Any) -> Method:
    """Creates what moves the members.

    Raises:
        InputError: the task, or its data, do not suit the method.
    """
    # Loaded here: BlackJAX makes arrays when it is, which starts JAX: after `startup.configure`.
    method: Method = METHODS.call(config.method, config, task)
    return method
