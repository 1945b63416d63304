"""Trials: resumable runs of `ensemble.train` within a time, and one table of what each has cost.

`ensemble search` and `ensemble compare-methods` are loops over `Trials.run`. A trial that has ended
is read from the table, so the same loop resumes what was interrupted.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import jax
from etils.epath import PathLike

from ensemble.config import build, differences
from ensemble.data.catalogue import complete
from ensemble.data.source import check_same_data
from ensemble.errors import InputError, Interrupted, TrainingError, logger
from ensemble.notes import collected, shown_with_the_result
from ensemble.pytrees import ByName
from ensemble.run.loop import train
from ensemble.run.progress import duration, open_display
from ensemble.sharding import processes, signals, startup
from ensemble.storage.workdir import Trial, Workdir, purpose_of, trials_file
from ensemble.tasks.supervised import load_source

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LEAST_SHARE = 0.5
"""Share of the shortest trial that must be left of the time for another one to begin: the first
seconds of a trial compile, and cannot be cut short."""
UNWATCHED = {"eval_every_epochs": 10**9}
"""Keys by which a trial is evaluated at its end alone."""

Keys = ByName
"""Keys of a configuration, flat, or other entries by name."""
Score = Callable[[Workdir, Keys], tuple[float, Keys]]
"""Returns the score of a finished run, lower is better, and details, from its results.json."""


@dataclass
class Trials:
    """A search or comparison under way.

    Attributes:
        out: Its workdir, open.
        purpose: `SEARCH` or `COMPARISON`.
        config: Configuration of all trials.
        data: As of `ensemble.train`.
        limit: Seconds in all.
        stop: Asked to stop the trial under way.
        show_progress: As of `ensemble.train`.
        table: Trials so far, by name, in their order.
    """

    out: Workdir
    purpose: str
    config: Keys
    data: Any
    limit: float
    stop: signals.Stop
    show_progress: bool
    table: dict[str, Trial] = field(default_factory=dict)

    @property
    def spent(self) -> float:
        """Seconds of all trials."""
        return sum(one.seconds for one in self.table.values())

    @property
    def ended(self) -> list[Trial]:
        """Trials that have ended."""
        return [one for one in self.table.values() if one.has_ended]

    @property
    def scored(self) -> list[Trial]:
        """Trials that have ended well."""
        return [one for one in self.ended if one.score is not None]

    def folder(self, name: str) -> Workdir:
        """Workdir of a trial."""
        return Workdir(self.out.path / "runs" / name)

    def read(self) -> None:
        """Takes over what the workdir has; a new one has no trials.

        Raises:
            InputError: The table is damaged, or of another configuration or data.
        """
        path, file = self.out.path, trials_file(self.out)
        if not file.exists():
            return
        content = self.out.manifest.read(file)
        if changed := differences(content["config"], self.config):
            raise InputError(
                f"{path} holds a {content['purpose']} with another configuration: "
                f"{'; '.join(changed)}. Set it as it was, or choose another --workdir"
            )
        self.table = {one["name"]: Trial(**one) for one in content["trials"]}
        for trial in self.scored[:1]:
            given, values = complete(self.config, {}, self.data)
            here = load_source(build(values).config, given).fingerprint
            learned = self.folder(trial.name).read_report()["dataset"]["fingerprint"]
            remedy = "restore the data, or choose another --workdir"
            check_same_data(str(path), learned, here, remedy)

    def run(self, name: str, settings: Keys, score: Score, must_end: bool = False) -> Trial | None:
        """Runs a trial, or returns what the table has of it.

        Args:
            name: Name of its folder.
            settings: As of `Trial`.
            score: Scores the finished run.
            must_end: If True, it does not end by the time. The first trial of all ends then with
                the result of its last step, and with more time the same call resumes it.

        Returns:
            The trial; None: the time is over, and the same call with more time resumes it.

        Raises:
            InputError: No trial has ended well yet, and the data or the configuration are why.
            Interrupted: SIGTERM or Ctrl-C.
        """
        trial = Trial(name, settings)
        known, left = self.table.get(name, trial), self.limit - self.spent
        if known.has_ended and (left <= 0 or not known.details.get("is_cut")):
            return known
        others = [one.seconds for one in self.scored if one is not known]
        is_first = not others
        if not (must_end or is_first) and left <= _LEAST_SHARE * min(others):
            return None
        left = max(left, 0.0)
        self._say(f"{self.purpose}: trying {name}, {duration(left)} left")
        began, folder = time.monotonic(), self.folder(name)
        ask = self.stop.finish if is_first else self.stop.note
        most = threading.TIMEOUT_MAX
        timer = threading.Timer(most if must_end else min(left, most), ask)
        timer.daemon = True
        timer.start()
        try:
            with shown_with_the_result():
                values, path = build(self.config, settings).values, os.fspath(folder.path)
                report = train(values, self.data, path, show_progress=self.show_progress).report
            value, details = score(folder, report)
            if not math.isfinite(value):
                raise TrainingError("its score is infinite")
            cut = {"is_cut": True} if self.stop.finishes() else {}
            trial = trial._replace(score=value, details={**details, **cut})
        except (TrainingError, InputError, jax.errors.JaxRuntimeError, MemoryError) as error:
            if isinstance(error, InputError) and is_first:
                raise  # The data, or what was given, suit no trial.
            trial = trial._replace(failure=(str(error) or type(error).__name__).splitlines()[0])
        except Interrupted:
            if self.stop.by_signal or must_end or is_first:
                raise
            return None
        finally:
            timer.cancel()
            trial = trial._replace(seconds=known.seconds + time.monotonic() - began)
            self._keep(trial)
        self._say(f"{name}: {trial.failure or f'{trial.score:.4f}'}")
        return trial

    def _keep(self, trial: Trial) -> None:
        """Enters a trial, and writes the table if there is something to resume."""
        self.table[trial.name] = trial
        if self.ended or self.folder(trial.name).config.exists():
            trials = [one._asdict() for one in self.table.values()]
            content = {"purpose": self.purpose, "config": self.config, "trials": trials}
            self.out.manifest.write(trials_file(self.out), content)

    def _say(self, line: str) -> None:
        """Shows a line that stays, between two trials."""
        with open_display(self.show_progress):
            logger.info("%s", line, extra={"stays": True})


@contextmanager
def open_trials(
    purpose: str,
    config: Keys,
    data,
    time_limit: float | str,
    workdir: PathLike | None,
    show_progress: bool,
) -> Iterator[Trials]:
    """Opens the trials of a workdir, or of a temporary one if that is None.

    Args:
        purpose: `SEARCH` or `COMPARISON`.
        config: Configuration of all trials, flat.
        data: As of `ensemble.train`.
        time_limit: Seconds, or a text such as `10m`, over all calls with this workdir.
        workdir: As of `ensemble.train`.
        show_progress: Likewise.

    Raises:
        InputError: The time, the workdir or the data cannot be used.
    """
    limit = parse_seconds(time_limit)
    startup.configure(config.get("num_devices"), config["method"])
    if processes.count() > 1:
        raise InputError(f"a {purpose} runs in one process; start it without the others")
    with ExitStack() as stack:
        out = Workdir(workdir or stack.enter_context(TemporaryDirectory()))
        if out.config.exists() and not purpose_of(out):
            raise InputError(f"{out.path} has a run already; choose another --workdir")
        stack.enter_context(out.opened())
        stop = stack.enter_context(signals.stop_signals())
        trials = Trials(out, purpose, config, data, limit, stop, show_progress)
        trials.read()
        stack.enter_context(collected())
        yield trials
        stop.is_settled = True


def parse_seconds(text: float | str) -> float:
    """Seconds, of a number or of a text such as '90', '90s', '10m' or '1.5h'.

    Raises:
        InputError: The text is no positive time.
    """
    found = re.fullmatch(r"(\d+\.?\d*)\s*([smh]?)", str(text).strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise InputError(
            f"time_limit={text!r} must be a positive time, such as 600, 90s, 10m or 2h"
        )
    return seconds
