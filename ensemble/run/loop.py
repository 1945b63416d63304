"""The one loop: it drives a method on a task, and every effect on the outside happens here."""

import contextlib
import functools
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import ml_collections

from ensemble import registry
from ensemble.config import all_keys, flatten
from ensemble.config_rules import validate
from ensemble.draws.store import Draws
from ensemble.errors import Interrupted
from ensemble.method import Diagnosed, Info, Method, PredictingMethod, Recorded, State, ToArviz
from ensemble.notes import collected, conclude
from ensemble.predictor import Predictor
from ensemble.report import results
from ensemble.report.findings import findings
from ensemble.report.running_statistics import stale_statistics
from ensemble.run.growth import enlarge
from ensemble.run.monitor import Monitor
from ensemble.run.own_data import with_defaults, with_likelihood
from ensemble.run.progress import Clock, Display, Progress, open_display
from ensemble.run.result import Result
from ensemble.run.resume import (
    Ending,
    Saved,
    check_same_experiment,
    restore,
    save,
    write_config,
)
from ensemble.run.writer import NoWriter, Writer
from ensemble.sharding import processes, startup
from ensemble.sharding.signals import Stop, resume_line, stop_signals
from ensemble.storage import identity
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.metrics_log import last_losses
from ensemble.storage.part_files import is_shared
from ensemble.storage.workdir import Workdir, write_error
from ensemble.task import Comparing, Learned, PredictingTask, Task

logger = logging.getLogger("ensemble")


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
    given: Mapping[str, Any] = flatten(config)
    by_hand = None if given.keys() >= all_keys().keys() else given.keys()
    if data is not None:
        given, data = with_defaults(given, data)
    config = validate(with_likelihood(given), by_hand)
    return train_given(config, lambda: data, workdir, started, show_progress)


def train_given(
    config: ml_collections.FrozenConfigDict,
    make_data: Callable[[], Any],
    workdir: str | None,
    started: float,
    show_progress: bool,
) -> Result:
    """As `train`, of a configuration that is complete.

    Args:
        config: of `validate`.
        make_data: makes what the task is given as data, once the devices are set up.
        workdir: as of `train`.
        started: as of `train`.
        show_progress: as of `train`.
    """
    startup.configure(config.num_devices, config.method)

    with contextlib.ExitStack() as stack:
        work = Workdir(
            stack.enter_context(tempfile.TemporaryDirectory()) if workdir is None else workdir
        )

        def open_workdir() -> None:
            stack.enter_context(work.opened())
            check_same_experiment(config, work)

        processes.from_main(open_workdir)
        stop = stack.enter_context(stop_signals())
        notes = stack.enter_context(collected())
        display = stack.enter_context(open_display(show_progress and processes.is_main()))
        processes.check_same("settings of JAX", identity.flags())
        task = create_task(config, make_data())
        processes.check_same("data", task.describe().get("fingerprint"))
        try:
            way = _Way(stop, workdir is not None, display, notes)
            result = _train_and_evaluate(config, task, work, started, way)
            result.workdir = workdir
            return result
        except OSError as error:
            if error.errno is None:  # Not of the system.
                raise
            raise write_error(work.path, error) from error


class _Way(NamedTuple):
    """How a run goes: what is the same for an ensemble and for members that are to join it.

    Attributes:
        stop: whether it is to end early.
        keep: whether anybody will read the workdir: else no checkpoints, no results.
        display: that shows how far it is.
        notes: what has been said of the run: the list grows.
    """

    stop: Stop
    keep: bool
    display: Display
    notes: Sequence[str]


def _train_and_evaluate(
    config: ml_collections.FrozenConfigDict,
    task: Task,
    work: Workdir,
    started: float,
    way: _Way,
) -> Result:
    """Advances a method until it has finished, and scores its members."""
    # Loaded here: BlackJAX makes arrays when it is, which starts JAX: after `startup.configure`.
    create = registry.load(registry.METHODS[config.method].factory)
    method: Method[State, Info] = create(config, task)
    with contextlib.ExitStack() as stack:
        checkpointer = stack.enter_context(
            _create_checkpointer(work, config.keep_checkpoints, way.keep)
        )
        saved = restore(work, checkpointer, method)
        if saved is not None:
            grow = functools.partial(_advance, way=way, others_live=True)
            enlarged = enlarge(method, saved, work, checkpointer, started, grow)
            if enlarged is not saved:  # Its clock has counted until now.
                saved, started = enlarged, time.monotonic()
        clock = Clock(started, **({} if saved is None else saved.clock))
        state, draws = _advance(method, work, checkpointer, saved, clock, way=way)
        predictions, status = results.live_predictions(
            method, state, [name for name in task.sizes if name != "train"]
        )
        timing = clock.timing()
        scored, num_examples = task.scored(), task.num_train_examples
        report = results.build_report(
            config, task.describe(), num_examples, scored, predictions, status, timing
        )
        if isinstance(method, Diagnosed):
            report |= method.report_sections(state, draws, timing)
        remedy = results.remedy(method, state) if report["failed_members"] else ""
        live = report["live_members"]
        found = (
            method.predictive(state, live, draws) if isinstance(method, PredictingMethod) else None
        )
        if processes.is_main():
            arrays = {name: one.arrays for name, one in predictions.items()}
            losses = last_losses(work.metrics)
            lines = findings(report, scored, arrays, losses, method.remedy, remedy)
            if found is not None:
                learned = cast(Learned, task)  # As a method has it whose members predict.
                lines = stale_statistics(learned, found, config, state.step) + lines
            conclude(lines)
            report["notes"] = list(way.notes)
        predictor = None
        if found is not None and processes.is_main():
            predictor = Predictor(
                cast(PredictingTask, task),
                found.variables,
                live,
                config.num_devices,
                num_draws=found.num_draws,
                identity=work.identity(),
                member_devices=found.member_devices,
            )
            if isinstance(task, Comparing):
                report |= task.compared(predictor)
        if way.keep and isinstance(method, Diagnosed):
            method.write_results(state, work, draws)
        if way.keep and processes.is_main():
            results.write_results(work, scored, report, predictions)
        processes.wait_for_all("written")
        if not processes.is_main():
            return Result({}, None)
        result = Result(report, predictor)
        if isinstance(method, ToArviz):
            result.data = method.inference_data()
        return result


def _advance(
    method: Method[State, Info],
    work: Workdir,
    checkpointer: Checkpointer,
    saved: Saved | None,
    clock: Clock,
    *,
    way: _Way,
    others_live: bool = False,
) -> tuple[State, Draws]:
    """Advances, writes, checkpoints and evaluates until the method has finished.

    Args:
        method: that moves members.
        work: where to.
        checkpointer: of `work`.
        saved: the checkpoint to go on from; None starts anew.
        clock: of the run.
        way: how the run goes.
        others_live: whether the ensemble has members elsewhere: then all of these may fail.

    Returns:
        The last state, and the draws that were kept.
    """
    config, stop = method.config, way.stop
    stop.ending = ending = Ending(checkpointer, method.num_steps, way.keep)
    if saved is not None:
        ending.note_saved(saved.counters["step"])
    state, draws = _begin(method, work, saved)
    with contextlib.ExitStack() as stack:
        sizes = {} if saved is None else saved.sizes
        main = processes.is_main()
        writer = Writer(work, sizes, purge_step=state.step + 1) if main else NoWriter()
        stack.callback(writer.close)
        progress = Progress(state.step, method.num_steps, display=way.display)
        stack.enter_context(progress)
        monitor = Monitor(method, method.task.scored(), writer, progress, clock, draws, others_live)
        if saved is not None:
            monitor.note_resumed(state)
        elif not others_live:
            writer.hparams(flatten(config), monitor.headline_tags)
            writer.charts(monitor.charts())
            monitor.log_parameters(state)

        done = method.finished(state) or monitor.may_end
        if not done and processes.is_main():
            work.report.unlink(missing_ok=True)  # It is of less training than is to come.
        while not done:
            state, info = method.advance(state, processes.tell(monitor.pace.limit))
            monitor.chunk_dispatched(info, state)  # Writes the one before: devices are busy.
            done = method.finished(state) or monitor.may_end
            every_epoch = 0 if info.is_cut else method.steps_per_epoch
            if done or is_due(state.step, config.eval_every_epochs * every_epoch):
                monitor.evaluate(state)
                done = done or monitor.may_end
                monitor.resume()
            stops = stop.asked()
            is_late = info.is_cut and ending.is_late()
            every = config.checkpoint_every_epochs * every_epoch
            if done or stops or is_late or is_due(state.step, every):
                monitor.flush()
                if stops and not done:
                    stop.settle()
                if way.keep:
                    save(work, checkpointer, method, state, writer, clock)
                    ending.note_saved(state.step)
                monitor.resume()
            if stops and not done:
                if not way.keep:
                    raise Interrupted("interrupted; without a workdir nothing is kept")
                checkpointer.wait()
                processes.wait_for_all("interrupted")
                raise Interrupted(
                    f"interrupted at step {state.step} of {method.num_steps}, after a checkpoint; "
                    f"{resume_line()}"
                )
    return state, draws


def _begin(method: Method[State, Info], work: Workdir, saved: Saved | None) -> tuple[State, Draws]:
    """The state to advance from, new or saved, and the draws that were kept before it.

    From here on the workdir says which run it holds.
    """
    rng_key = jax.random.key(method.config.seed)
    if saved is None:
        state = method.init(rng_key)
    else:
        with work.checkpoint_errors(), processes.losses_noticed():  # Else it were called damage.
            state = method.from_host(rng_key, saved.arrays, saved.counters)
        logger.info("Resuming %s at step %d of %d.", work.path, state.step, method.num_steps)
    processes.from_main(lambda: write_config(work, method))
    draws = Draws(work.draws, processes.from_main(work.identity))
    num_recorded = method.num_recorded(state) if isinstance(method, Recorded) else 0
    processes.from_main(lambda: draws.truncate(num_recorded))
    return state, draws


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one; 0 is never."""
    return every > 0 and step % every == 0


def _create_checkpointer(work: Workdir, num_kept: int, keep: bool) -> Checkpointer:
    """Says who writes checkpoints: each process its own part, where all see one folder."""
    shared = keep and is_shared(work.path)
    if keep and processes.count() > 1:
        line = (
            "%s is one folder for all %d processes: each writes and reads its part of checkpoints."
            if shared
            else "%s is not one folder for all %d processes: process 0 writes checkpoints for all."
        )
        logger.info(line, work.path, processes.count())
    return Checkpointer(work.checkpoints, num_kept, shared)


def create_task(config: ml_collections.FrozenConfigDict, data: Any) -> Task:
    """Makes what is to be learned: data, network and prior, or a density.

    Raises:
        UserError: they cannot be had, or do not suit each other.
    """
    entry = registry.TASKS[registry.task_of(config)]
    task: Task = registry.load(entry.create)(config, data)
    return task
