"""Trials: resumable runs of `ensemble.train` within a time, and one table of what each has cost.

`ensemble search` and `ensemble compare-methods` are loops over `Trials.run`. A trial that has ended
is read from the table, so the same loop resumes what was interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from ensemble.config import build
from ensemble.data import source
from ensemble.data.catalogue import complete
from ensemble.errors import InputError, Interrupted, TrainingError
from ensemble.notes import collected, shown_with_the_result
from ensemble.run.loop import train
from ensemble.run.progress import duration, open_display
from ensemble.sharding import processes, signals, startup
from ensemble.storage.trials import Table, Trial, purpose_of, read_table, write_table
from ensemble.storage.workdir import Workdir
from ensemble.tasks.learning_data import load_source

logger = logging.getLogger("ensemble")

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LEAST_SHARE = 0.5
"""Share of the shortest trial that must be left of the time for another one to begin: the first
seconds of a trial compile, and cannot be cut short."""
UNWATCHED: Mapping[str, Any] = {"eval_every_epochs": 10**9}
"""Keys by which a trial is evaluated at its end alone."""

Score = Callable[[Workdir, Mapping[str, Any]], tuple[float, Mapping[str, Any]]]
"""Returns the score of a finished run, lower is better, and details, from its results.json."""


class Trials:
    """A search or comparison under way.

    Args:
        out: Its workdir, open.
        table: What was tried so far.
        data: As of `ensemble.train`.
        limit: Seconds in all.
        stop: Asked to stop the trial under way.
        show_progress: As of `ensemble.train`.
    """

    def __init__(
        self,
        out: Workdir,
        table: Table,
        data: Any,
        limit: float,
        stop: signals.Stop,
        show_progress: bool,
    ):
        self.out = out
        self.table = table
        self.data = data
        self.limit = limit
        self.stop = stop
        self._shows = show_progress
        if table.running is not None:  # The process was killed.
            name, began = table.running
            file = self.folder(name).metrics
            lost = file.stat().mtime - began if file.exists() else 0.0
            table.seconds = (table.seconds[0] + max(0.0, lost), table.seconds[1])
            table.running = None
        self.check_same_data()

    def folder(self, name: str) -> Workdir:
        """Workdir of a trial."""
        return Workdir(self.out.path / "runs" / name)

    def run(
        self,
        name: str,
        settings: Mapping[str, Any],
        score: Score,
        must_end: bool = False,
    ) -> Trial | None:
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
        table = self.table
        known = table.trials.get(name)
        left = self.limit - table.spent
        if known is not None and (left <= 0 or not known.details.get("is_cut")):
            return known
        is_first = not table.scored or known is not None
        shortest = min((one.seconds for one in table.scored), default=0.0)
        if not (must_end or is_first) and left <= _LEAST_SHARE * shortest:
            return None
        if known is not None:
            table.seconds = known.seconds, known.cpu_seconds
            del table.trials[name]
        began = time.monotonic()
        cpu = time.process_time()
        before = table.seconds
        table.running = (name, time.time())
        if table.trials or self.folder(name).config.exists():  # There is something to resume.
            write_table(self.out, table)
        found: dict[str, Any] = {}
        try:
            ask = self.stop.finish if is_first else self.stop.note
            seconds = math.inf if must_end else max(left, 0.0)
            with _call_after(seconds, ask), shown_with_the_result():
                values = build(table.config, settings).values
                path = self.folder(name).path
                report = train(values, self.data, os.fspath(path), show_progress=self._shows).report
            self._check_fingerprint(str(report["dataset"]["fingerprint"]), name)
            found["score"], found["details"] = score(self.folder(name), report)
            if self.stop.finishes():
                found["details"] = {**found["details"], "is_cut": True}
            if not math.isfinite(found["score"]):
                found = {"failure": "its score is infinite"}
        except (TrainingError, InputError, jax.errors.JaxRuntimeError, MemoryError) as error:
            if isinstance(error, InputError) and not table.scored:
                raise  # The data, or what was given, suit no trial.
            self.check_same_data()  # Else they are others, or gone.
            found = {"failure": (str(error) or type(error).__name__).splitlines()[0]}
        except Interrupted:
            if self.stop.by_signal or must_end or is_first:
                raise
            return None
        finally:
            seconds = before[0] + time.monotonic() - began
            table.seconds = (seconds, before[1] + time.process_time() - cpu)
            table.running = None
            if found:
                table.trials[name] = Trial(name, settings, *table.seconds, **found)
                table.seconds = (0.0, 0.0)
            if table.trials or self.folder(name).config.exists():
                write_table(self.out, table)
        return table.trials[name]

    def say(self, line: str) -> None:
        """Shows a line that stays, between two trials."""
        with open_display(self._shows):
            logger.info("%s", line, extra={"stays": True})

    def announce(self, name: str) -> None:
        """Shows what is tried next, unless it has ended."""
        if name not in self.table.trials:
            left = duration(max(0.0, self.limit - self.table.spent))
            self.say(f"{self.table.purpose}: trying {name}, {left} left")

    def check_same_data(self) -> None:
        """Refuses other data than those of the trials before.

        Raises:
            InputError: The data are others, or cannot be had.
        """
        if self.table.fingerprint:
            given, values = complete(self.table.config, {}, self.data)
            self._check_fingerprint(load_source(build(values).config, given).fingerprint)

    def _check_fingerprint(self, learned: str, name: str = "") -> None:
        known = self.table.fingerprint = self.table.fingerprint or learned
        if learned != known and name:
            self.folder(name).path.rmtree()
        remedy = "restore the data, or choose another --workdir"
        source.check_same_data(str(self.out.path), known, learned, remedy)


@contextlib.contextmanager
def open_trials(
    purpose: str,
    config: Mapping[str, Any],
    data: Any,
    time_limit: float | str,
    workdir: str | os.PathLike[str] | None,
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
    with contextlib.ExitStack() as stack:
        out = Workdir(workdir or stack.enter_context(tempfile.TemporaryDirectory()))
        if out.config.exists() and not purpose_of(out):
            raise InputError(f"{out.path} has a run already; choose another --workdir")
        stack.enter_context(out.opened())
        table = read_table(out, purpose, config)
        stop = stack.enter_context(signals.stop_signals())
        stack.enter_context(collected())
        try:
            yield Trials(out, table, data, limit, stop, show_progress)
        except Interrupted:
            if workdir is None:
                raise Interrupted("interrupted; without a workdir nothing is kept") from None
            raise
        stop.is_settled = True


def parse_seconds(text: float | str) -> float:
    """Seconds, of a number or of a text such as '90', '90s', '10m' or '1.5h'.

    Raises:
        InputError: The text is no positive time.
    """
    found = re.fullmatch(r"([0-9.]+)\s*([smh]?)", str(text).strip())
    with contextlib.suppress(ValueError):
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
        if 0 < seconds < math.inf:
            return seconds
    raise InputError(f"time_limit={text!r} must be a positive time, such as 600, 90s, 10m or 2h")


@contextlib.contextmanager
def _call_after(seconds: float, function: Callable[[], None]) -> Iterator[None]:
    """Within it, a function is called after so long."""
    if math.isinf(seconds):
        yield
        return
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
