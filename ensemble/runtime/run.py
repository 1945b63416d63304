"""A run in a workdir: members start or go on, are shown, scored and saved."""

import contextlib
import copy
import functools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from clu import parameter_overview

from ensemble import pytrees
from ensemble.config import flatten
from ensemble.data.source import check_same_data
from ensemble.draws.store import Draws
from ensemble.errors import InputError, Interrupted, TrainingError
from ensemble.likelihoods.predictive import Predictive
from ensemble.metrics import values
from ensemble.notes import recall, said
from ensemble.report import plots
from ensemble.report.evaluation import Evaluation
from ensemble.run.log import Log
from ensemble.run.opened import Open
from ensemble.run.progress import Clock, Progress
from ensemble.runtime.algorithm import FAILURES, Status
from ensemble.runtime.loading import PARAMETERS
from ensemble.runtime.loop import Loop, Period, Periods, Rows
from ensemble.runtime.method import Method
from ensemble.runtime.predict import Predictions
from ensemble.runtime.programs import Programs
from ensemble.sharding import processes
from ensemble.storage.memory import check_memory

logger = logging.getLogger("ensemble")

_PLOT_EVERY_EPOCHS = 10
_NUM_SCALARS = 10
"""Scalars of a member and a step, about."""


class Run:
    """Some members of a run, in a workdir; it observes their loop.

    Args:
        method: What moves them.
        numbers: Their numbers.
        where: Workdir and what surrounds it.
        clock: Clock of the run.
        others_live: Whether the ensemble has members elsewhere: then all of these may fail.

    Attributes:
        devices: Placement of the members.
        algorithm: How they move.
        report: Report of these members.
        loop: The loop that moves them.
        draws: Parameters that were kept.
        arrays: Arrays of the checkpoint that the run goes on from.
        meta: Further content of that checkpoint; empty if there is none.
    """

    def __init__(
        self,
        method: Method,
        numbers: Sequence[int],
        where: Open,
        clock: Clock,
        others_live: bool = False,
    ):
        self.method = method
        self.numbers = tuple(numbers)
        self.where = where
        self.config = config = method.config
        self.task = method.task
        self.clock = clock
        self.others_live = others_live
        self.devices = method.place(len(self.numbers))
        self.algorithm = method.algorithm(self.devices, self.numbers)
        self.report = copy.copy(method.report)
        self.report.run = self
        epochs = (config.eval_every_epochs, config.checkpoint_every_epochs)
        periods = Periods(config.log_every_steps, *(n * method.steps_per_epoch for n in epochs))
        self.loop = Loop(self.algorithm, self.devices, self.numbers, config.seed, periods, self)
        self.draws = Draws(where.work.draws)
        self.arrays: Any = {}
        self.meta: dict[str, Any] = {}
        self._failed: set[int] = set()
        self._last: dict[str, float] = {}
        self._seconds = math.nan  # The first steps compile.
        self._is_described = others_live  # New members are a part of what is described.

    @functools.cached_property
    def predict(self) -> Predictions:
        """The program of what sets of parameters say of inputs."""
        learned = self.method.members_learn or self.task
        return Predictions(learned, self.devices, self.report.predict, self.algorithm.passes)

    @property
    def status(self) -> dict[int, Status]:
        """The status of the members, by number."""
        return {k: Status(int(s)) for k, s in zip(self.numbers, self.loop.status, strict=True)}

    @property
    def failed(self) -> dict[int, str]:
        """What the members that have failed have become, by number."""
        return {k: FAILURES[s] for k, s in self.status.items() if s in FAILURES}

    @property
    def live(self) -> list[int]:
        """Numbers of the members that have not failed."""
        return [k for k in self.numbers if k not in self.failed]

    # Beginning, and going on.

    def restore(self) -> None:
        """Reads the newest checkpoint into `arrays` and `meta`, if there is one.

        Raises:
            InputError: It is of another experiment.
        """
        work = self.where.work
        found = self.where.checkpointer.restore()
        if found is not None:
            self.arrays, self.meta = found
            with work.checkpoint_errors():
                self._check()
            self.clock = Clock(**{**self.meta["clock"], "started": self.clock.started})
            recall(self.meta["notes"])
        elif processes.is_main() and work.metrics.exists():
            logger.warning("%s has a run without a checkpoint: it starts again.", work.path)

    def _check(self) -> None:
        """Refuses to go on with another experiment."""
        path = self.where.work.path
        counters, then = self.meta["counters"], self.meta["dataset"]
        now = self.task.describe()
        remedy = "restore the data or choose another --workdir"
        check_same_data(str(path), then["fingerprint"], now["fingerprint"], remedy)
        if counters["step"] > self.goal:
            raise InputError(
                f"the run in {path} has taken {counters['step']} steps, more than the {self.goal} "
                "of this configuration; raise its epochs, steps or draws"
            )
        before = {**counters["facts"], "the teacher": then.get("teacher")}
        teacher = {"the teacher": (now.get("teacher"), "config.teacher")}
        for name, (value, key) in {**self.method.facts, **teacher}.items():
            if before.get(name) != value:
                raise InputError(
                    f"{name} is {value} in this configuration, and {before.get(name)} in the run "
                    f"in {path}; keep {key} as it was, or choose another --workdir"
                )

    def begin(self, shared: Any = None) -> None:
        """Starts the members, or puts those of the checkpoint on the devices.

        Args:
            shared: What members that were there before share; None: it is found.
        """
        work = self.where.work
        loop = self.loop
        counters = self.meta.get("counters", {})
        if not self.meta:
            if isinstance(loop.programs, Programs):  # Others keep to what there is by themselves.
                self._check_memory()
            loop.start(shared)
        else:
            with work.checkpoint_errors(), processes.losses_noticed():
                rows = Rows(counters["begun"])
                if counters["step"] > rows.first:
                    saved = jax.tree.map(np.asarray, self.arrays.get("rows", {}))
                    rows.append(counters["step"] - rows.first, **saved)
                shared = self.devices.put_everywhere(self.arrays.get("shared"))
                loop.restore(counters["step"], self.arrays["members"], shared, rows)
            logger.info("Resuming %s at step %d of %d.", work.path, loop.step, self.goal)
            self._failed = {*self.failed}
            self.report.resumed(self, loop.step, counters["goal"])
        first = self.first_row(loop.rows.first)

        def take_files() -> None:
            """Takes the draws on disk that the checkpoint knows of."""
            work.write_config(self.config)
            self.draws.join(takes=counters.get("num_members") == len(self.numbers))
            self.draws.truncate(first)

        processes.from_main(take_files)

    def _check_memory(self) -> None:
        """Refuses members that do not fit into memory, before anything is computed.

        Devices hold their states. The host holds a copy, which a checkpoint fetches, scalars and
        kept parameters between two lines of metrics, and predictions.

        Raises:
            InputError: They take more than there is.
        """
        programs, keep, number = self.loop.programs, self.algorithm.keep, len(self.numbers)
        size = pytrees.size(programs.set_shapes)
        steps = min(self.config.log_every_steps, self.goal)
        each = _NUM_SCALARS * steps + (steps // keep.every * size if keep else 0)
        if self.task.dataset is not None:
            num_scored = sum(self.task.sizes.values()) - self.task.sizes["train"]
            each += num_scored * self.task.likelihood.num_outputs
        state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(programs.shapes))
        check_memory(
            (state + 4 * each * number) // processes.count(),
            f"{number} {self.report.noun}s of {size:,} parameters",
            "their number or config.log_every_steps, or choose a smaller network",
            state // processes.count(),
            list(self.devices.mesh.devices.flat),
        )

    def first_row(self, step: int) -> int:
        """The number of the row of scalars on disk that is of a step."""
        keep = self.algorithm.keep
        return 0 if keep is None else int(keep.before(step)) if keep.only_rows else step

    @property
    def goal(self) -> int:
        """Steps of the run."""
        return self.algorithm.num_steps

    def go(self, until: int | None = None) -> None:
        """Moves the members to the goal, and shows how they do.

        Raises:
            TrainingError: No member is alive.
            Interrupted: SIGTERM or Ctrl-C; a checkpoint has been written.
        """
        where, loop = self.where, self.loop
        call = None if self.others_live else self.config.on_metrics
        progress = Progress(loop.step, self.goal, where.display)
        self.log = Log(where.work, loop.step + 1, call, where.keep, processes.is_main())
        with contextlib.closing(self.log), progress as self.progress:
            if not loop.finished and processes.is_main():
                where.work.manifest.remove(where.work.report)  # It is of less training.
            if not loop.step and not self.others_live:
                shapes = loop.programs.set_shapes
                overview = parameter_overview.get_parameter_overview(
                    shapes.get("params", shapes), include_stats=False
                )
                logger.info("Parameters of a %s:\n%s", self.report.noun, overview)
            if not loop.go(until) and (self.others_live or not where.stop.finishes()):
                where.checkpointer.wait()
                processes.wait_for_all("interrupted")
                raise Interrupted(where.stop.last_line(f" at step {loop.step} of {self.goal}"))
            if not self.others_live and self.report.finish(self):
                self.save()

    # The loop's observer.

    def advanced(self, step: int, seconds: float | None) -> None:
        """Steps have come back from the devices; `seconds` is None where a program was compiled."""
        if seconds is None:
            self.clock.compiled()
            self.progress.compiled(step)
        self._seconds += seconds or math.nan
        self.progress.update(step)

    def period(self, period: Period) -> None:
        """Writes a line of metrics, and the draws of its steps."""
        self._note_failures(period.end)
        scalars = self.report.scalars(self, period)
        for k in self._failed:
            scalars = {tag: v for tag, v in scalars.items() if f"/member_{k:02d}/" not in tag}
        examples = self.report.examples(self, period)
        self._last = scalars
        if self._seconds > 0:
            self.clock.seconds_training += self._seconds
            self.clock.member_examples += examples
            self._last = scalars | {self.report.rate: examples / self._seconds}
        self._seconds = 0.0
        self._record(period.end, self._last, self.report.headline(scalars))
        keep = self.algorithm.keep
        first, end = map(self.first_row, period[:2])
        if keep is None or end <= first or not processes.is_main():
            return
        numbers = range(first, end) if keep.only_rows else keep.steps(first, end)
        rows = {}
        for name, value in self.report.recorded(self, period).items():
            # A name may have a place for numbers.
            for i, column in enumerate(np.moveaxis(np.atleast_3d(value), 2, 0)):
                rows[name.format(i)] = column.T
        positions = jax.tree.map(lambda leaf: np.moveaxis(leaf[:, :, 0], 0, 1), period.kept)
        self.draws.append(end, rows, self.report.stripped(positions), list(numbers))

    def evaluate(self) -> bool:
        """Scores the live members and their mean on the tracked split, and draws plots.

        Returns:
            Whether the run may end.
        """
        report, loop = self.report, self.loop
        split = self.method.tracked_split
        self._note_failures(loop.step)
        if self.others_live and not self.live:
            return True
        scalars = report.monitored(self)
        may_end = bool(processes.from_main(lambda: report.may_end(scalars)))
        shown = report.headline(self._last | scalars)
        e = None
        if split and (p := self.predictions([split]).get(split)):
            e = Evaluation(p, np.asarray(self.task.dataset.targets(split)), split=split)
            metrics = {name: one for name, one in e.metrics.items() if one.in_table}
            for k, member in zip(self.live, e.test.members, strict=True):
                each = values(member, e.y, metrics)
                scalars |= {f"{split}/member_{k:02d}/{name}": v for name, v in each.items()}
            whole = values(e.test, e.y)
            for name, value in whole.items():
                group = "ensemble" if e.metrics[name].of_members else "diversity"
                scalars[f"{split}/{group}/{name}"] = value
            loss = "nll" if "nll" in whole else e.headline
            found = {f"{split} {e.headline}": whole[e.headline], e.metrics[loss].title: whole[loss]}
            shown = {**found, **shown}
        self._describe(metrics if e else ())
        self._record(loop.step, scalars, shown, stays=True)
        is_due = loop.step % (_PLOT_EVERY_EPOCHS * self.method.steps_per_epoch) == 0
        if e and (is_due or loop.finished):
            for name, charts in plots.figures(e).items() if processes.is_main() else ():
                self.log.image(loop.step, f"{split}/{name}", plots.pixels(charts))
            if e.test.kind != "several":
                self.log.histogram(loop.step, f"{split}/uncertainty", e.test.doubt())
        return may_end

    def _describe(self, metrics: Iterable[str]) -> None:
        """Describes the run to TensorBoard, at the first evaluation of this process."""
        if not self._is_described:
            self._is_described = True
            split = self.method.tracked_split
            charts = {
                f"{split} {one}": f"{split}/(member_[0-9]+|ensemble)/{one}" for one in metrics
            }
            headlines = [f"{split}/ensemble/{one}" for one in metrics]
            self.log.describe(flatten(self.config), headlines, {**self.report.charts, **charts})

    def predictions(self, splits: Sequence[str]) -> dict[str, Predictive]:
        """What the live members say of splits; one that predicts NaN has failed.

        Raises:
            TrainingError: No member is alive.
        """
        found = {}
        if self.task.dataset is not None and self.report.has_predictions(self):
            found = {name: self.report.predictions(self, name) for name in splits}
        for one in found.values():
            self.loop.fail(one.have_nan())
        self._note_failures(self.loop.step)
        places = [self.numbers.index(k) for k in self.live]
        return {name: one.of(places) for name, one in found.items()}

    def stops(self, done: bool) -> bool:
        """Whether the run is to stop before it is done: then nobody else needs to end it.

        All processes ask alike.
        """
        stop = self.where.stop
        found = stop.asked() and not done
        stop.is_settled |= found
        return found

    @property
    def save_seconds(self) -> float:
        """Seconds that the last checkpoint took; 0: there is none yet."""
        return self.where.checkpointer.seconds

    def save(self) -> None:
        """Writes a checkpoint."""
        if not self.where.keep:
            return
        self.where.checkpointer.wait()  # Else the copies of two checkpoints were in memory.
        arrays = self.saved_arrays()
        self.log.flush()

        def meta() -> dict[str, Any]:
            self.where.work.check_is_there()
            return {
                "counters": self.counters(),
                "dataset": self.task.describe(),
                "clock": self.clock.state(),
                "notes": said(),
            }

        self.where.checkpointer.save(self.loop.step, arrays, processes.from_main(meta))

    def counters(self) -> dict[str, Any]:
        """The numbers of a checkpoint."""
        loop = self.loop
        keep = self.algorithm.keep
        return {
            "step": loop.step,
            "goal": self.goal,
            "begun": loop.rows.first,
            "num_kept": 0 if keep is None else int(keep.before(loop.rows.first)),
            "num_members": len(self.numbers),
            "is_split": self.devices.splits_members,
            "facts": {name: value for name, (value, _) in self.method.facts.items()},
        }

    def saved_arrays(self) -> dict[str, Any]:
        """What a checkpoint holds: arrays [num_places, ...] on the devices, rows on the host."""
        loop = self.loop
        arrays = {"members": loop.programs.saved(loop.members)}
        if loop.shared is not None:
            arrays["shared"] = jax.tree.map(np.asarray, loop.shared)
        if self.algorithm.parameters is not None and self.has_parameters():
            arrays[PARAMETERS] = loop.parameters()
        if rows := {name: one for name, one in loop.rows.saved().items() if one}:
            arrays["rows"] = rows
        return arrays

    def has_parameters(self) -> bool:
        """Whether members predict by their states, and not by what they have kept on disk."""
        predicts = self.task.dataset is not None and self.algorithm.keep is None
        return predicts and self.report.has_predictions(self)

    def _record(
        self,
        step: int,
        scalars: Mapping[str, float],
        shown: Mapping[str, float],
        stays: bool = False,
    ) -> None:
        """Writes scalars, and shows some, with the epoch if there are examples to go through."""
        epoch = step / self.method.steps_per_epoch
        failed = {"failed_members": sorted(self._failed)} if self._failed else {}
        self.log.scalars(step, scalars, epoch=epoch, **failed)
        known = {} if self.task.dataset is None else {"epoch": f"{epoch:.1f}"}
        self.progress.update(step, {**known, **shown}, stays)

    def _note_failures(self, step: int) -> None:
        failed = self.failed
        for k in sorted(failed.keys() - self._failed):
            line = "%s %d became %s by step %d: it is left out of every mean."
            logger.warning(line, self.report.noun.capitalize(), k, failed[k], step)
        self._failed |= {*failed}
        if len(failed) == len(self.numbers) and not self.others_live:
            reasons = " or ".join(sorted({*failed.values()}))
            raise TrainingError(
                f"all of the {len(self.numbers)} {self.report.noun}s under way became {reasons} by "
                f"step {step}; {self.report.remedy}, or look for a logarithm or root of a negative "
                "number in what is learned"
            )
