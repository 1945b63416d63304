"""A run in a workdir: members start or go on, are shown, scored and saved."""

import copy
import math
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cached_property
from typing import Any

import jax
import numpy as np
from clu import parameter_overview

from ensemble import pytrees
from ensemble.config import flatten
from ensemble.data.source import check_same_data
from ensemble.draws.store import Draws
from ensemble.errors import InputError, Interrupted, TrainingError, logger
from ensemble.metrics import values
from ensemble.notes import recall, said
from ensemble.pytrees import ByName
from ensemble.report import plots
from ensemble.report.evaluation import Evaluation
from ensemble.run.log import Log
from ensemble.run.progress import Clock, Progress
from ensemble.runtime.algorithm import FAILURES
from ensemble.runtime.loading import PARAMETERS
from ensemble.runtime.loop import Loop, Period, Periods
from ensemble.runtime.method import Method
from ensemble.runtime.predict import Predictions
from ensemble.runtime.programs import Programs
from ensemble.sharding import processes
from ensemble.storage.files import make_folder, write_file
from ensemble.storage.manifest import damaged
from ensemble.storage.memory import check_memory
from ensemble.storage.workdir import as_lines, read_metrics

_PLOT_EVERY_EPOCHS = 10


class Run:
    """Some members of a run, in a workdir; it observes their loop.

    Args:
        method: What moves them.
        numbers: Their numbers.
        where: Workdir and what surrounds it, an `ensemble.run.loop.Open`.
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
        facts: What a resumed run must have again, each with the key that sets it.
    """

    def __init__(
        self,
        method: Method,
        numbers: Sequence[int],
        where: Any,
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
        epoch = method.steps_per_epoch
        periods = Periods(
            config.log_every_steps,
            config.eval_every_epochs * epoch,
            config.checkpoint_every_epochs * epoch,
        )
        self.loop = Loop(self.algorithm, self.devices, self.numbers, config.seed, periods, self)
        self.draws = Draws(where.work.draws)
        self.arrays: Any = {}
        self.meta: Any = {}
        teacher = self.task.describe().get("teacher"), "config.teacher"
        self.facts = {**method.facts, "the teacher": teacher}
        if others_live:
            self.facts["the number of new members"] = len(self.numbers), "config.ensemble_size"
        self._failed: set[int] = set()
        self._seconds = math.nan  # The first steps compile.
        self._is_described = others_live  # New members are a part of what is described.

    @cached_property
    def predict(self) -> Predictions:
        """The program of what sets of parameters say of inputs."""
        learned = self.method.members_learn or self.task
        return Predictions(learned, self.devices, self.report.predict, self.algorithm.passes)

    @property
    def failed(self) -> dict[int, str]:
        """What the members that have failed have become, by number."""
        status = zip(self.numbers, self.loop.status, strict=True)
        return {k: FAILURES[one] for k, one in status if one in FAILURES}

    @property
    def live(self) -> list[int]:
        """Numbers of the members that have not failed."""
        failed = self.failed
        return [k for k in self.numbers if k not in failed]

    @property
    def goal(self) -> int:
        """Steps of the run."""
        return self.algorithm.num_steps

    # Beginning, and going on.

    def restore(self) -> None:
        """Reads the newest checkpoint into `arrays` and `meta`, if there is one.

        Raises:
            InputError: It is of another experiment.
        """
        found = self.where.checkpointer.restore()
        if found is None:
            return
        self.arrays, self.meta = found
        work = self.where.work
        with work.checkpoint_errors():
            counters, learned = self.meta["counters"], self.meta["dataset"]["fingerprint"]
            remedy = "restore the data or choose another --workdir"
            check_same_data(str(work.path), learned, self.task.describe()["fingerprint"], remedy)
            if counters["step"] > self.goal:
                raise InputError(
                    f"the run in {work.path} has taken {counters['step']} steps, more than the "
                    f"{self.goal} of this configuration; raise its epochs, steps or draws"
                )
            for name, (value, key) in self.facts.items():
                before = counters["facts"].get(name)
                if before != value:
                    raise InputError(
                        f"{name} is {value} in this configuration, and {before} in the run in "
                        f"{work.path}; keep {key} as it was, or choose another --workdir"
                    )
        self.clock = Clock(**{**self.meta["clock"], "started": self.clock.started})
        recall(self.meta["notes"])

    def begin(self, shared: Any = None) -> None:
        """Starts the members, or puts those of the checkpoint on the devices.

        Args:
            shared: What members that were there before share; None: it is found.

        Raises:
            InputError: They do not fit into memory, or into this program.
        """
        work, loop = self.where.work, self.loop
        counters = self.meta.get("counters", {})
        if counters:
            with work.checkpoint_errors(), processes.losses_noticed():
                loop.restore(counters["step"], counters["begun"], self.arrays)
            logger.info("Resuming %s at step %d of %d.", work.path, loop.step, self.goal)
            self._failed = {*self.failed}
            self.report.resumed(self, loop.step, counters["goal"])
        else:
            if isinstance(loop.programs, Programs):  # Others keep to what there is by themselves.
                programs, keep, number = loop.programs, self.algorithm.keep, len(self.numbers)
                leaves = jax.tree.leaves(programs.shapes)
                state = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // processes.count()
                # The host holds a copy of what devices do, which a checkpoint fetches, what is kept
                # between two lines of metrics, and predictions.
                lines = min(self.config.log_every_steps, self.goal)
                each = lines // keep.every * pytrees.size(programs.set_shapes) if keep else 0
                if self.task.dataset is not None:
                    scored = sum(self.task.sizes.values()) - self.task.sizes["train"]
                    each += scored * self.task.likelihood.num_outputs
                check_memory(
                    state + 4 * each * number // processes.count(),
                    f"the states of {number} {self.report.noun}s",
                    "their number or config.log_every_steps, or choose a smaller network",
                    state,
                    [*self.devices.mesh.devices.flat],
                )
            loop.start(shared)
        first = self.first_row(loop.rows.first)

        def take_files() -> None:
            """Takes the draws on disk that the checkpoint knows of."""
            work.write_config(self.config)
            self.draws.join(takes=counters.get("num_members") == len(self.numbers))
            self.draws.truncate(first)

        processes.from_main(take_files)

    def first_row(self, step: int) -> int:
        """The number of the row of scalars on disk that is of a step."""
        keep = self.algorithm.keep
        return 0 if keep is None else int(keep.before(step)) if keep.only_rows else step

    def go(self, until: int | None = None) -> None:
        """Moves the members to the goal, and shows how they do.

        Raises:
            TrainingError: No member is alive.
            Interrupted: SIGTERM or Ctrl-C; a checkpoint has been written.
        """
        where, loop, is_new = self.where, self.loop, self.others_live
        call = None if is_new else self.config.on_metrics
        progress = Progress(loop.step, self.goal, where.display)
        self.log = Log(where.work, loop.step + 1, call, where.keep, processes.is_main())
        with closing(self.log), progress as self.progress:
            if not loop.finished and processes.is_main():
                where.work.manifest.remove(where.work.report)  # It is of less training.
            if not loop.step and not is_new:
                shapes = loop.programs.set_shapes
                shapes = shapes.get("params", shapes)
                overview = parameter_overview.get_parameter_overview(shapes, include_stats=False)
                logger.info("Parameters of a %s:\n%s", self.report.noun, overview)
            if not loop.go(until) and (is_new or not where.stop.finishes()):
                where.checkpointer.wait()
                processes.wait_for_all("interrupted")
                raise Interrupted(where.stop.last_line(f" at step {loop.step} of {self.goal}"))
            if not is_new and self.report.finish(self):
                self.save()

    # The loop's observer.

    def advanced(self, step: int, seconds: float | None) -> None:
        """Steps have come back from the devices; `seconds` is None where a program was compiled."""
        if seconds is None:
            self.progress.compiled(step)
        self._seconds += seconds or math.nan
        self.progress.update(step)

    def period(self, period: Period) -> None:
        """Writes a line of metrics, and the draws of its steps."""
        self._note_failures(period.end)
        scalars = self.report.scalars(self, period)
        for k in self._failed:
            scalars = {tag: v for tag, v in scalars.items() if f"/member_{k:02d}/" not in tag}
        if self._seconds > 0:
            examples = self.report.examples(self, period)
            self.clock.seconds_training += self._seconds
            self.clock.member_examples += examples
            scalars[self.report.rate] = examples / self._seconds
        self._seconds = 0.0
        self._record(period.end, scalars, self.report.headline(scalars))
        keep = self.algorithm.keep
        first, end = map(self.first_row, period[:2])
        if keep is None or end <= first:
            return
        numbers = range(first, end) if keep.only_rows else keep.steps(first, end)
        rows = {
            name.format(i): column.T  # A name may have a place for numbers.
            for name, value in self.report.recorded(self, period).items()
            for i, column in enumerate(np.moveaxis(np.atleast_3d(value), 2, 0))
        }
        positions = jax.tree.map(lambda leaf: np.moveaxis(leaf[:, :, 0], 0, 1), period.kept)
        if processes.is_main():
            self.draws.append(end, rows, self.report.stripped(positions), list(numbers))

    def evaluate(self) -> bool:
        """Scores the live members and their mean on the tracked split, and draws plots.

        Returns:
            Whether the run may end.
        """
        report, loop = self.report, self.loop
        split: Any = self.method.tracked_split
        self._note_failures(loop.step)
        if self.others_live and not self.live:
            return True
        scalars = report.monitored(self)
        may_end = bool(processes.from_main(lambda: report.may_end(scalars)))
        shown = report.headline(scalars)
        metrics: ByName = {}
        e = None
        for p in self.predictions([split] if split else []).values():
            e = Evaluation(p, np.asarray(self.task.dataset.targets(split)), split=split)
            metrics = {name: one for name, one in e.metrics.items() if one.in_table}
            for k, member in zip(self.live, p.members, strict=True):
                each = values(member, e.y, metrics)
                scalars |= {f"{split}/member_{k:02d}/{name}": v for name, v in each.items()}
            whole = values(p, e.y)
            for name, value in whole.items():
                group = "ensemble" if e.metrics[name].of_members else "diversity"
                scalars[f"{split}/{group}/{name}"] = value
            shown = {**{f"{split} {name}": whole[name] for name in e.main}, **shown}
        if not self._is_described:
            self._is_described = True
            of_all = f"{split}/(member_[0-9]+|ensemble)"
            charts = {f"{split} {name}": f"{of_all}/{name}" for name in metrics}
            tags = [f"{split}/ensemble/{name}" for name in metrics]
            self.log.describe(flatten(self.config), tags, {**report.charts, **charts})
        self._record(loop.step, scalars, shown, stays=True)
        is_due = loop.step % (_PLOT_EVERY_EPOCHS * self.method.steps_per_epoch) == 0
        if e and (is_due or loop.ended) and processes.is_main():
            figures = plots.figures(e)
            for name, panels in figures.items():
                pixels = plots.pixels(panels)
                self.log.event(loop.step, "image", f"{split}/{name}", pixels, dataformats="HWC")
            if figures:
                # NumPy's, if float64 cannot separate edges of bins.
                with suppress(ValueError):
                    doubt = e.test.doubt()
                    self.log.event(loop.step, "histogram", f"{split}/uncertainty", doubt, "auto")
        return may_end

    def predictions(self, splits: Sequence[str]) -> ByName:
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
        arrays = self.saved()
        self.log.flush()

        def meta() -> ByName:
            self.where.work.check_is_there()
            return {
                "counters": self.counters(),
                "dataset": self.task.describe(),
                "clock": self.clock.state(),
                "notes": said(),
            }

        self.where.checkpointer.save(self.loop.step, arrays, processes.from_main(meta))

    def counters(self) -> ByName:
        """The numbers of a checkpoint."""
        loop, keep = self.loop, self.algorithm.keep
        return {
            "step": loop.step,
            "goal": self.goal,
            "begun": loop.rows.first,
            "num_kept": 0 if keep is None else int(keep.before(loop.rows.first)),
            "num_members": len(self.numbers),
            "is_split": self.devices.splits_members,
            "facts": {name: value for name, (value, _) in self.facts.items()},
        }

    def saved(self) -> ByName:
        """The arrays of a checkpoint: those of the loop, and what predicts if no state does."""
        arrays = self.loop.saved()
        if self.algorithm.parameters is not None and self.has_parameters():
            arrays[PARAMETERS] = self.loop.parameters()
        return arrays

    def has_parameters(self) -> bool:
        """Whether members predict by their states, and not by what they have kept on disk."""
        predicts = self.task.dataset is not None and self.algorithm.keep is None
        return predicts and self.report.has_predictions(self)

    def _record(self, step: int, scalars: ByName, shown: ByName, stays: bool = False) -> None:
        """Writes scalars, and shows some, with the epoch if there are examples to go through."""
        epoch = step / self.method.steps_per_epoch
        failed = {"failed_members": sorted(self._failed)} if self._failed else {}
        self.log.scalars(step, scalars, epoch=epoch, **failed)
        known = {} if self.task.dataset is None else {"epoch": f"{epoch:.1f}"}
        self.progress.update(step, {**known, **shown}, stays)

    def _note_failures(self, step: int) -> None:
        failed, noun = self.failed, self.report.noun
        for k in sorted(failed.keys() - self._failed):
            line = "%s %d became %s by step %d: it is left out of every mean."
            logger.warning(line, noun.capitalize(), k, failed[k], step)
        self._failed |= {*failed}
        if len(failed) == len(self.numbers) and not self.others_live:
            reasons = " or ".join(sorted({*failed.values()}))
            raise TrainingError(
                f"all of the {len(failed)} {noun}s under way became {reasons} by step {step}; "
                f"{self.report.remedy}, or look for a logarithm or root of a negative number in "
                "what is learned"
            )


# An ensemble that gets more members: they train in a folder of their own, and then join. Member k
# depends on the seed and on k alone. So new members train until they have taken as many steps as
# the others, and then all of them are one checkpoint.


def enlarge(run: Run) -> None:
    """Trains the members that a run's checkpoint lacks, and joins them to it.

    Interrupted, they are resumed. The run then has a checkpoint of all members.

    Args:
        run: Run of all members, which has read the checkpoint.

    Raises:
        InputError: The run has more members than are asked for, or is getting others.
    """
    work, counters = run.where.work, run.meta["counters"]
    there, size = counters["num_members"], len(run.numbers)
    if size < there:
        raise InputError(
            f"config.ensemble_size={size}, but {work.path} has {there} members; keep that number "
            "or more, or choose another --workdir"
        )
    if size > there:
        where = run.where.of_new_members(there, size - 1)
        inner = where.work

        def check() -> None:
            """Refuses members that were to join another run."""
            if inner.config.exists() and inner.identity() != work.identity():
                raise damaged(inner.path)

        def begin() -> None:
            """Says in the workdir that the ensemble is to be larger than it is."""
            work.write_config(run.config)
            work.manifest.remove(work.report)
            make_folder(inner.path)
            make_folder(work.events)
            inner.write_config(run.config, work)

        with where.checkpointer:
            processes.from_main(check)
            new = Run(run.method, range(there, size), where, run.clock, others_live=True)
            new.restore()
            processes.from_main(begin)
            logger.info("Members %d to %d train alone until they are level.", there, size - 1)
            new.begin(run.arrays.get("shared"))
            new.go(until=counters["step"])
            with work.checkpoint_errors():
                _join(run, new, counters)
        run.where.checkpointer.save(counters["step"], run.arrays, run.meta)
        run.where.checkpointer.wait()
    # Nobody is to join any more.
    processes.from_main(lambda: work.new_members.exists() and work.new_members.rmtree())


def _join(run: Run, new: Run, counters: ByName) -> None:
    """Joins new members to the checkpoint that a run has read, and their files to its own."""
    there = counters["num_members"]
    arrays = new.saved()
    before, rows = run.arrays.get("rows", {}), arrays.pop("rows", {})
    shared = arrays.pop("shared", None)
    joined = jax.tree.map(  # All processes fetch them in one order.
        lambda own, old: np.concatenate([np.asarray(old)[:there], own]),
        new.devices.fetch_members(arrays),
        {name: run.arrays[name] for name in arrays},
    )
    if both := [name for name in ("scalars", "kept") if name in rows and name in before]:
        joined["rows"] = jax.tree.map(
            lambda own, old: np.concatenate([old, own], axis=1),
            {name: rows[name] for name in both},
            {name: before[name] for name in both},
        )

    def join_files() -> None:
        """Joins metrics, without scores of the ensemble, and what is kept."""
        members, path = [new.numbers[0], new.numbers[-1]], run.where.work.metrics
        # A kill may have left theirs here before they joined.
        lines = [one for one in read_metrics(path) if one.get("members") != members]
        for one in read_metrics(new.where.work.metrics):
            own = {k: v for k, v in one.items() if not re.search("/(ensemble|diversity)/", k)}
            lines.append({**own, "members": members})
        write_file(path, as_lines(lines))
        if run.algorithm.keep is not None:
            run.draws.joined(new.draws)

    processes.from_main(join_files)
    run.arrays = joined if shared is None else {**joined, "shared": shared}
    run.clock = new.clock
    counters = {**counters, "num_members": len(run.numbers)}
    run.meta = {**run.meta, "clock": run.clock.state(), "counters": counters}
