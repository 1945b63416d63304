"""The one loop: a run is configured, created, restored, advanced and reported.

`train` configures. `run` sets up JAX and goes through the other four, the functions below it.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import ml_collections

from ensemble import registry
from ensemble.config import built_in_keys, flatten
from ensemble.config_rules import validate
from ensemble.draws.store import Draws
from ensemble.method import (
    Info,
    Keeping,
    Method,
    PredictingMethod,
    Reporting,
    State,
    StoppingEarly,
    ToArviz,
)
from ensemble.notes import conclude
from ensemble.predictor import Predictor
from ensemble.report import results
from ensemble.report.findings import findings
from ensemble.report.running_statistics import stale_statistics
from ensemble.run.growth import enlarge
from ensemble.run.monitor import Monitor
from ensemble.run.opened import Open, open_checkpoints, opened
from ensemble.run.own_writers import OwnWriter, open_own_writers
from ensemble.run.progress import Clock, Progress
from ensemble.run.result import Result
from ensemble.run.resume import Ending, Saved, begin, missing_packages_named, restore, save
from ensemble.run.writer import open_writer
from ensemble.sharding import processes, startup
from ensemble.sources.catalogue import complete
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.metrics_log import last_losses
from ensemble.task import Comparing, Learned, Task


def train(
    config: ml_collections.ConfigDict | Mapping[str, Any],
    data: Any = None,
    workdir: str | None = None,
    *,
    started: float | None = None,
    show_progress: bool = True,
) -> Result:
    """Trains an ensemble, or goes on training the one in `workdir`, and scores it.

    Args:
        config: some or all of the keys of `ensemble.config.default_config`. Those of other methods
            are refused; but in a configuration with every key, which started from
            `default_config()`, they are left out. Of several processes all call this with the same
            arguments, after `jax.distributed.initialize`.
        data: arrays to learn instead of `config.dataset`: `(X, y)`, or a mapping such as
            `{"inputs": X, "labels": y}`; `ensemble.sources.data_forms` has all forms. Keys that
            `config` leaves out then are as in `configs/arrays.py`, in `configs/images.py` for
            pictures, and in `configs/tabular.py` for data frames.
        workdir: directory for checkpoints, metrics and results, local or `gs://`; a run that is
            already there is resumed. None keeps nothing.
        started: `time.monotonic()` when the process began, for the report's timing.
        show_progress: whether to show on stderr, or below a notebook's cell, how far the run is:
            steps, epoch, scores and the time left. Warnings are logged in any case.

    Returns:
        The report and a predictor, which has the devices of this process; of several processes
        only the main one gets them.

    Raises:
        UserError: the configuration, the data or the workdir cannot be used.
        RunFailed: no member is alive, or one failed and `config.on_nonfinite` is 'stop'.
        Interrupted: SIGTERM or Ctrl-C; a checkpoint has been written.
    """
    started = time.monotonic() if started is None else started
    said: Mapping[str, Any] = flatten(config)
    by_hand = None if said.keys() >= built_in_keys().keys() else said.keys()
    given, said = complete(said, data)
    with missing_packages_named(workdir):
        checked = validate(said, by_hand)
    return run(checked, lambda: given, workdir, started, show_progress)


def run(
    config: ml_collections.FrozenConfigDict,
    make_data: Callable[[], Any],
    workdir: str | None,
    started: float,
    show_progress: bool,
) -> Result:
    """Runs a configuration that is complete: creates, restores, advances and reports.

    Args:
        config: of `validate`.
        make_data: makes what the task is given as data, once the devices are set up.
        workdir: as of `train`.
        started: as of `train`.
        show_progress: as of `train`.
    """
    startup.configure(config.num_devices, config.method)  # Of JAX: flags, devices, processes.
    with opened(config, workdir, show_progress) as where:
        task = create_task(config, make_data())
        processes.check_same("data", task.describe().get("fingerprint"))
        with open_checkpoints(where, config.keep_checkpoints) as checkpointer:
            method = create_method(config, task)
            saved = restore(where.work, checkpointer, method)
            clock = Clock(started, **({} if saved is None else saved.clock))
            if saved is not None:
                saved, clock = enlarge(method, saved, where, checkpointer, clock, advance)
            state, draws = advance(method, where, checkpointer, saved, clock)
            result = report(method, state, draws, where, clock)
            result.workdir = workdir
            return result


def create_task(config: ml_collections.FrozenConfigDict, data: Any) -> Task:
    """Creates what is to be learned: data, network and prior, or a density.

    Raises:
        UserError: they cannot be had, or do not suit each other.
    """
    name = registry.task_of(config)
    create = registry.load_code(registry.TASKS, name, registry.TASKS[name].create)
    task: Task = create(config, data)
    registry.check_members(registry.TASKS, name, task, Task)
    return task


def create_method(config: ml_collections.FrozenConfigDict, task: Task) -> Method[State, Info]:
    """Creates what moves the members.

    Raises:
        UserError: the task, or its data, do not suit the method.
    """
    # Loaded here: BlackJAX makes arrays when it is, which starts JAX: after `startup.configure`.
    name = config.method
    factory = registry.load_code(registry.METHODS, name, registry.METHODS[name].factory)
    method: Method[State, Info] = factory(config, task)
    registry.check_members(registry.METHODS, name, method, Method)
    return method


def advance(
    method: Method[State, Info],
    where: Open,
    checkpointer: Checkpointer,
    saved: Saved | None,
    clock: Clock,
    others_live: bool = False,
) -> tuple[State, Draws]:
    """Advances, writes, checkpoints and evaluates until the method has finished.

    Args:
        method: that moves members.
        where: to write to.
        checkpointer: of its workdir.
        saved: the checkpoint to go on from; None starts anew.
        clock: of the run.
        others_live: whether the ensemble has members elsewhere: then all of these may fail.

    Returns:
        The last state, and the draws that were kept.

    Raises:
        RunFailed: as of `train`.
        Interrupted: as of `train`.
    """
    config, work, stop = method.config, where.work, where.stop
    stop.ending = ending = Ending(checkpointer, method.num_steps, where.keep, saved)
    state, draws = begin(method, work, saved)
    with contextlib.ExitStack() as stack:
        sizes = {} if saved is None else saved.sizes
        own: Sequence[OwnWriter] = ()
        if not others_live:  # Else there were two starts of one run.
            path = str(work.path) if where.keep else None
            own = stack.enter_context(open_own_writers(config, path, state.step))
        writer = stack.enter_context(open_writer(work, sizes, state.step + 1, own, where.keep))
        progress = Progress(
            state.step,
            method.num_steps,
            display=where.display,
            may_end_early=method.may_end_early,
        )
        stack.enter_context(progress)
        monitor = Monitor(method, method.task.scored(), writer, progress, clock, draws, others_live)
        if saved is not None:
            monitor.note_resumed(state)
        elif not others_live:
            writer.hparams(flatten(config), monitor.headline_tags)
            writer.charts(monitor.charts())
            monitor.log_parameters(state)

        done = method.finished(state) or monitor.may_end
        if processes.is_main() and not done:
            work.report.unlink(missing_ok=True)  # It is of less training than is to come.
        while not done:
            state, info = method.advance(state, processes.tell(monitor.pace.limit))
            monitor.write_previous(info, state)  # The devices are busy with this chunk meanwhile.
            done = method.finished(state) or monitor.may_end
            every_epoch = 0 if info.is_cut else method.steps_per_epoch
            if done or is_due(state.step, config.eval_every_epochs * every_epoch):
                monitor.evaluate(state)
                done = done or monitor.may_end
                monitor.resume()
            stops = stop.asked() and not done
            is_late = info.is_cut and ending.is_late()
            every = config.checkpoint_every_epochs * every_epoch
            if done or stops or is_late or is_due(state.step, every):
                monitor.write_pending()
                if stops:
                    stop.settle()
                if where.keep:
                    save(work, checkpointer, method, state, writer, clock)
                    ending.note_saved(state.step)
                monitor.resume()
            if stops:
                ending.interrupt(state.step)
    return state, draws


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one; 0 is never."""
    return every > 0 and step % every == 0


def report(
    method: Method[State, Info], state: State, draws: Draws, where: Open, clock: Clock
) -> Result:
    """Scores the members, says what there is to say of them, and writes the results.

    Args:
        method: that has finished.
        state: its last.
        draws: that were kept.
        where: to write to.
        clock: of the run.

    Returns:
        The report and a predictor; in other processes than the main one, an empty pair.
    """
    task, work, config = method.task, where.work, method.config
    splits = [name for name in task.sizes if name != "train"]
    predictions, status = results.live_predictions(method, state, splits, draws)
    timing, scored = clock.timing(), task.scored()
    content = results.build_report(
        config, task.describe(), task.num_train_examples, scored, predictions, status, timing
    )
    if isinstance(method, Reporting):
        content |= method.report_sections(state, draws, timing)
    if isinstance(method, StoppingEarly):
        results.log_stopped(method.stopped_at(state), len(status), method.steps_per_epoch)
    live, fault = content["live_members"], ""
    if content["failed_members"]:
        fault = results.remedy(method, state)
    fitted = None
    if isinstance(method, PredictingMethod):
        fitted = method.fitted(state, live, draws)
    predictor = None
    if processes.is_main():
        losses = last_losses(work.metrics)
        lines = findings(content, scored, predictions, losses, method.remedy, fault)
        if fitted is not None:
            learned = cast(Learned, task)  # As a method has it whose members predict.
            lines = stale_statistics(learned, fitted, config, state.step) + lines
            identity = work.identity()
            predictor = Predictor(learned, fitted, live, config.num_devices, identity=identity)
        conclude(lines)
        content["notes"] = list(where.notes)
        if predictor is not None and isinstance(task, Comparing):
            content |= task.compared(predictor)
    if where.keep and isinstance(method, Keeping):
        method.write_results(state, work, draws)
    if where.keep and processes.is_main():
        results.write_results(work, scored, content, predictions)
    processes.wait_for_all("written")
    if not processes.is_main():
        return Result({}, None)
    result = Result(content, predictor)
    if isinstance(method, ToArviz):
        result.data = method.inference_data()
    return result
