"""The one loop: it drives a method on a task, and every effect on the outside happens here."""

import contextlib
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import ml_collections
import numpy as np
from absl import logging

from ensemble import networks
from ensemble.config import WALK, differences, flatten, validate
from ensemble.draws.draws import Draws
from ensemble.errors import Interrupted, UserError
from ensemble.method import Method
from ensemble.methods.members.sgd import SGD
from ensemble.methods.walk.random_walk import Walking
from ensemble.priors import parse_prior
from ensemble.report import report as reporting
from ensemble.run.monitor import Monitor
from ensemble.run.progress import Clock, Progress
from ensemble.run.writer import NoWriter, Writer
from ensemble.sharding import processes, startup
from ensemble.sources.catalogue import dataset_from_arrays, load_dataset
from ensemble.sources.dataset import WatchDataset
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.schema import checked_meta
from ensemble.storage.workdir import WRITE_ERRORS, Workdir, cannot_write
from ensemble.tasks import densities
from ensemble.tasks.classification import Classification, check_augmentation, check_model
from ensemble.tasks.factorisation.task import MODEL, create_factorisation
from ensemble.tasks.target import Target


class Result(NamedTuple):
    """What `train` returns: the content of report.json, and the ensemble as a function."""

    report: dict[str, Any]
    predictor: Any


def train(
    config: ml_collections.ConfigDict | Mapping[str, Any],
    data: Mapping[str, np.ndarray] | None = None,
    workdir: str | None = None,
    *,
    started: float | None = None,
    show_progress: bool = True,
) -> Result:
    """Trains an ensemble, or goes on training the one in `workdir`, and scores it.

    Args:
        config: some or all of the keys of `ensemble.config.default_config`. Of several processes
            all call this with the same arguments, after `jax.distributed.initialize`.
        data: arrays to learn instead of `config.dataset`; `ensemble.sources.dataset_from_arrays`
            says which.
        workdir: directory for checkpoints, metrics and results, local or `gs://`; a run that is
            already there is resumed. None keeps nothing.
        started: `time.monotonic()` when the process began, for the report's timing.
        show_progress: whether to draw a bar on a terminal.

    Returns:
        The report and a predictor, which has the devices of this process; of several processes
        only the main one gets them.

    Raises:
        UserError: the configuration, the data or the workdir cannot be used.
        RunFailed: no member is alive, or one failed and `config.on_nonfinite` is 'stop'.
        Interrupted: SIGTERM or Ctrl-C; a checkpoint has been written.
    """
    started = time.monotonic() if started is None else started
    config = validate(config)
    startup.configure(config.num_devices, config.method)

    with contextlib.ExitStack() as stack:
        work = Workdir(
            stack.enter_context(tempfile.TemporaryDirectory()) if workdir is None else workdir
        )

        def open_workdir() -> None:
            stack.enter_context(work.opened())
            _check_same_experiment(config, work)

        processes.from_main(open_workdir)
        stop = stack.enter_context(_stop_signals())
        task = _create_task(config, data)
        processes.check_same("data", task.describe().get("fingerprint"))
        try:
            return _train_and_evaluate(
                config, task, work, started, stop, workdir is not None, show_progress
            )
        except OSError as error:
            if error.errno not in WRITE_ERRORS:
                raise
            raise cannot_write(work.path, error.strerror or str(error)) from error


def _train_and_evaluate(
    config: ml_collections.FrozenConfigDict,
    task: Any,
    work: Workdir,
    started: float,
    stop: "Stop",
    keep: bool,
    show_progress: bool,
) -> Result:
    """Advances, writes, checkpoints and evaluates until the method has finished.

    Without `keep` nobody will read the workdir: no checkpoints, no results.
    """

    method = _create_method(config, task)
    rng_key = jax.random.key(config.seed)
    with contextlib.ExitStack() as stack:
        checkpointer = Checkpointer(work.checkpoints, config.keep_checkpoints)
        stack.callback(checkpointer.close)
        saved = _restore(work, checkpointer)
        if saved is None:
            state, clock, sizes = method.init(rng_key), Clock(started), {}
        else:
            with work.checkpoint_errors():
                arrays, meta = saved[0], checked_meta(saved[1])
                _check_resumable(task, method, meta, work)
                with processes.losses_noticed():  # Else it would be called damage.
                    state = method.from_host(rng_key, arrays, meta["counters"])
                clock, sizes = Clock(started, **meta["clock"]), meta["sizes"]
            logging.info("Resuming %s at step %d of %d.", work.path, state.step, method.num_steps)
        draws, num_recorded = Draws(work.draws), method.num_recorded(state)
        processes.from_main(lambda: draws.truncate(num_recorded))
        processes.from_main(lambda: work.write_config(config))
        writer: Writer = NoWriter()
        if processes.is_main():
            writer = Writer(
                work,
                sizes,
                purge_step=state.furthest_step + 1,
                run_purge_step=state.step + 1,
            )
        stack.callback(writer.close)
        progress = stack.enter_context(Progress(state.step, method.num_steps, show=show_progress))
        monitor = Monitor(method, writer, progress, clock, draws)
        if saved is None:
            writer.hparams(flatten(config), monitor.headline_tags)
            monitor.log_parameters(state)
        else:
            monitor.note_resumed(state)

        done = method.finished(state) or monitor.may_end
        if not done and processes.is_main():
            work.report.unlink(missing_ok=True)  # It is of less training than is to come.
        while not done:
            state, info = method.advance(state)
            monitor.chunk_dispatched(info)  # Writes the chunk before: the devices are busy.
            done = method.finished(state) or monitor.may_end
            if done or is_due(state.step, config.eval_every_epochs * method.steps_per_epoch):
                monitor.evaluate(state)
                done = done or monitor.may_end
                clock.resume()
            stops = stop.asked()
            if (
                done
                or stops
                or is_due(state.step, config.checkpoint_every_epochs * method.steps_per_epoch)
            ):
                monitor.flush()
                if keep:
                    _save(work, checkpointer, config, task, method, state, writer, clock)
                clock.resume()
            if stops and not done:
                if not keep:
                    raise Interrupted("interrupted; without a workdir nothing is kept")
                checkpointer.wait()
                processes.wait_for_all("interrupted")
                raise Interrupted(
                    f"interrupted at step {state.step} of {method.num_steps}, after a checkpoint; "
                    f"resume with: {_command()}"
                )

        state = method.join(state)
        predictions, status = reporting.live_predictions(
            method, state, [name for name in task.splits if name != "train"]
        )
        timing = clock.timing()
        report = reporting.build_report(config, task, predictions, status, timing)
        report |= method.report_sections(state, draws, timing)
        writer.flush()
        predictor = method.predictor(state, report["live_members"], draws)
        if keep:
            method.write_results(state, work, draws)
        if keep and processes.is_main():
            reporting.write_results(work, task, report, predictions)
        processes.wait_for_all("written")
        if not processes.is_main():
            return Result({}, None)
        return Result(report, predictor)


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one."""
    return step % every == 0


def _create_task(
    config: ml_collections.FrozenConfigDict, data: Mapping[str, np.ndarray] | None
) -> Any:

    if config.method == WALK:
        if data is not None:
            raise UserError(f"data are not for config.method={WALK!r}, which samples a density")
        return Target(config.density, densities.create(config.density))
    if data is None:
        dataset = load_dataset(
            config.dataset, config.data_dir or None, config.seed, config.hold_out
        )
    else:
        dataset = dataset_from_arrays(data, seed=config.seed, hold_out=config.hold_out)
    priors = parse_prior(config.prior)
    if isinstance(dataset, WatchDataset):
        return create_factorisation(config, dataset, priors)
    if config.model == MODEL:
        raise UserError(
            f"config.model={MODEL!r} needs watches, which {dataset.name} are not; set "
            "config.dataset to such as watches:1000x600 or movielens/1m-ratings"
        )
    task = Classification(dataset, networks.create(config.model, dataset.num_classes), priors)
    check_model(task, config.model)
    check_augmentation(config, task)
    return task


def _create_method(config: ml_collections.FrozenConfigDict, task: Any) -> Method:
    if config.method == "sgd":
        return SGD(config, task)
    if config.method == WALK:
        return Walking(config, task)
    # BlackJAX makes arrays when it is imported, which starts JAX: after `startup.configure` only.
    from ensemble.methods.mcmc.sampling import Sampling

    return Sampling(config, task)


def _save(
    work: Workdir,
    checkpointer: Any,
    config: ml_collections.FrozenConfigDict,
    task: Any,
    method: Any,
    state: Any,
    writer: Any,
    clock: Clock,
) -> None:
    """Checkpoints everything that the next chunk, and a program that predicts, will need."""

    arrays, counters = method.to_host(state)
    if not processes.is_main():
        return
    work.check_is_there()
    meta = {
        "config": config.to_dict(),
        "counters": counters,
        "dataset": task.describe(),
        "sizes": writer.sizes(),
        "clock": clock.state(),
    }
    checkpointer.save(state.ticks, arrays, meta)


def _restore(work: Workdir, checkpointer: Any) -> tuple[Any, Any] | None:
    """Reads the newest checkpoint, `(arrays, meta)`, in the main process, for all."""

    arrays = None

    def read() -> Any:
        nonlocal arrays
        saved = checkpointer.restore_latest()
        if saved is None:
            if work.metrics.exists():
                logging.warning("%s has a run without a checkpoint: it starts again.", work.path)
            return None
        arrays, meta = saved
        return meta

    meta = processes.from_main(read)
    return None if meta is None else (processes.arrays_from_main(arrays), meta)


def _check_same_experiment(config: ml_collections.FrozenConfigDict, work: Workdir) -> None:
    """Refuses another experiment in an old workdir, before anything slow happens.

    Raises:
        UserError: what differs, and what to do.
    """
    before = work.read_config()
    changed = differences(before, config.to_dict()) if before is not None else []
    if changed:
        raise UserError(
            f"{work.path} holds a run with another configuration: {'; '.join(changed)}; "
            "restore these values or choose another --workdir"
        )


def _check_resumable(task: Any, method: Any, meta: Any, work: Workdir) -> None:
    """Refuses to go on with another experiment in an old workdir.

    Raises:
        UserError: what differs, and what to do.
    """
    now, then = task.describe(), meta["dataset"]
    if now["fingerprint"] != then["fingerprint"]:
        raise UserError(
            f"{work.path} holds a run on other data than {now['name']} has now; "
            "restore the data or choose another --workdir"
        )
    method.check_resumable(meta["counters"], str(work.path))


class Stop(Protocol):
    """Whether the run is to stop."""

    def asked(self) -> bool:
        """Called at every chunk's end; of several processes, all get the same answer."""


class _Signalled(threading.Event):
    """A signal to the one process."""

    def asked(self) -> bool:
        """Whether it has come."""
        return self.is_set()


class _SignalledAnywhere:
    """A signal to any of several processes, of which JAX tells the others."""

    def __init__(self) -> None:
        self._calls = 0

    def asked(self) -> bool:
        """Whether it has come, and all are at the same chunk."""

        self._calls += 1
        return processes.may_stop(self._calls)


@contextlib.contextmanager
def _stop_signals() -> Iterator[Stop]:
    """Turns the first SIGTERM or Ctrl-C into a stop; a second one ends the process at once."""

    if processes.count() > 1:
        with processes.interrupts_forwarded():
            yield _SignalledAnywhere()
        return
    stop = _Signalled()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may set handlers.
        return
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def note(number: int, _: Any) -> None:
        logging.warning("%s: the run will stop at the next chunk.", signal.Signals(number).name)
        stop.set()
        for each in signals:
            signal.signal(each, before[each])

    for number in signals:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number in signals:
            signal.signal(number, before[number])


def _command() -> str:

    if processes.count() > 1:  # This process's own would not do.
        return "the same command, for all processes"
    return shlex.join([sys.executable, *sys.orig_argv[1:]])
