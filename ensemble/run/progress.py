"""How far a run is, how fast it goes, and when it will end."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from ensemble.run.display import Display

logger = logging.getLogger("ensemble")

QUIET_SECONDS = 30.0
"""After so long without a line one tells how far the run is."""
LINE_SECONDS = 2.0
"""Lines of what was done last are at least so far apart."""


@dataclasses.dataclass
class Clock:
    """The seconds of a run, over all the processes that it took.

    Attributes:
        started: `time.monotonic()` at which this process began.
        seconds_before: what earlier processes of the run took.
        seconds_to_first_step: from a process's start to the end of its first step; the first's.
        seconds_training: spent in training steps and on what ends members early, without
            evaluation and writing.
        member_examples: examples seen, summed over members.
    """

    started: float
    seconds_before: float = 0.0
    seconds_to_first_step: float | None = None
    seconds_training: float = 0.0
    member_examples: int = 0
    _since: float = dataclasses.field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self.seconds_before + time.monotonic() - self.started

    def resume(self) -> None:
        """Starts or restarts the measurement of training after other work."""
        self._since = time.monotonic()

    def chunk_done(self, member_examples: int) -> float:
        """Counts a chunk of training that has just ended; returns its member-examples/s."""
        now = time.monotonic()
        elapsed, self._since = now - self._since, now
        self.seconds_training += elapsed
        self.member_examples += member_examples
        return member_examples / elapsed

    def compiled(self) -> None:
        """Notes the end of a process's first chunk, which compiled and so counts in no rate."""
        self.resume()
        if self.seconds_to_first_step is None:
            self.seconds_to_first_step = time.monotonic() - self.started

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the clock; `Clock(started, **state)` goes on from it."""
        return {
            "seconds_before": self.seconds(),
            "seconds_to_first_step": self.seconds_to_first_step,
            "seconds_training": self.seconds_training,
            "member_examples": self.member_examples,
        }

    def timing(self) -> dict[str, float | None]:
        """Returns the report's entry."""
        return {
            "seconds_to_first_step": self.seconds_to_first_step,
            "seconds_total": self.seconds(),
            "member_examples_per_second": (
                self.member_examples / self.seconds_training if self.seconds_training else None
            ),
        }


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Tells how far some work is: lines in the log, and what a display makes of the same.

    Args:
        done: steps already taken.
        total: steps in all.
        what: is going on.
        unit: of the steps.
        display: that shows it too; None for the log alone.
    """

    def __init__(
        self,
        done: int,
        total: int,
        what: str = "training",
        unit: str = "step",
        display: Display | None = None,
    ):
        self._first, self._total, self._what, self._unit = done, total, what, unit
        self._display = Display() if display is None else display
        self._is_new = True  # No line has told the time left.
        self._began = self._started = self._shown = time.monotonic()
        self._step, self._epoch = done, ""
        self._scores: dict[str, float] = {}

    def __enter__(self) -> "Progress":
        self._display.begin(self._what, self._unit, self._first, self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            took = duration(time.monotonic() - self._began)
            self._display.end(self._step, self._known(), took)

    def compiled(self, step: int) -> None:
        """Notes the first steps of a process, whose time says nothing of the others'."""
        self._first, self._started = step, time.monotonic()

    def update(
        self,
        step: int,
        epoch: float | None = None,
        scores: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Shows how far it is, and logs a line if it has been quiet for long, with more to come.

        Args:
            step: that was taken last.
            epoch: where it is known.
            scores: that are new; those of before stay in sight.
        """
        self._note(step, epoch, scores)
        now = time.monotonic()
        if step == self._first or step >= self._total:
            return
        self._display.update(step, self._known(), self.left(step))
        is_new = self._is_new and self._seconds_left(step) > QUIET_SECONDS
        if is_new or now - self._shown > QUIET_SECONDS:
            self._log("step %d/%d; %s left", step, self._total, self.left(step))

    def log(self, step: int, epoch: float | None, scores: Mapping[str, float]) -> None:
        """Logs the scores of an evaluation, with the time left, and the epoch if there are some."""
        self._note(step, epoch, scores)
        self._display.update(step, self._known(), self.left(step))
        self._log(
            "step %d/%d%s: %s; %s left",
            step, self._total, self._epoch and f", {self._epoch}", _listed(scores), self.left(step),
        )  # fmt: skip

    def line(self, step: int, text: str) -> None:
        """Logs what was done last, with the time left, unless the line before has just come."""
        self._step = step
        self._display.update(step, text, self.left(step))
        if step >= self._total or time.monotonic() - self._shown > LINE_SECONDS:
            self._log("%s; %s left", text, self.left(step))

    def _note(self, step: int, epoch: float | None, scores: Mapping[str, float]) -> None:
        self._step = step
        self._scores.update(scores)
        if epoch is not None:
            self._epoch = f"epoch {epoch:.1f}"

    def _log(self, line: str, *values: object) -> None:
        self._shown, self._is_new = time.monotonic(), False
        if not self._display.has_log:  # Else it would show this twice.
            logger.info(line, *values)

    def _known(self) -> str:
        """The epoch and the last scores, as far as there are some."""
        return ", ".join(filter(None, [self._epoch, _listed(self._scores)]))

    def left(self, step: int) -> str:
        """The time that the steps after this one will take, at the pace so far."""
        return duration(self._seconds_left(step))

    def _seconds_left(self, step: int) -> float:
        elapsed = time.monotonic() - self._started
        return elapsed / max(step - self._first, 1) * (self._total - step)


def duration(seconds: float) -> str:
    """Returns seconds as h:mm:ss or m:ss."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def _listed(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_readable(value)}" for name, value in scores.items())


def _readable(value: float) -> str:
    if abs(value) >= 100 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
