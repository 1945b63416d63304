"""How far a run is, how fast it goes, and when it will end."""

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich import progress as rich_progress
from rich.console import Console

logger = logging.getLogger(__name__)

QUIET_SECONDS = 30.0
"""After so long without a line one tells how far the run is."""


@dataclasses.dataclass
class Clock:
    """The seconds of a run, over all the processes that it took.

    Attributes:
        started: `time.monotonic()` at which this process began.
        seconds_before: what earlier processes of the run took.
        seconds_to_first_step: from a process's start to the end of its first step; the first's.
        seconds_training: spent in training steps, without evaluation and writing.
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
    """A bar with an ETA on a terminal; the log has the same as plain lines, everywhere.

    Args:
        done: steps already taken.
        total: steps in all.
        what: is going on.
        show: whether to draw the bar where there is a terminal.
    """

    def __init__(self, done: int, total: int, what: str = "training", show: bool = True):
        self._first, self._total, self._what, self._show = done, total, what, show
        self._is_new = True  # No line has told the time left.
        self._started = self._shown = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if self._show and sys.stderr.isatty():
            self._bar = rich_progress.Progress(
                *rich_progress.Progress.get_default_columns(),
                rich_progress.MofNCompleteColumn(),
                console=Console(stderr=True),
            )
            self._row = self._bar.add_task(self._what, total=self._total, completed=self._first)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def compiled(self, step: int) -> None:
        """Notes the first steps of a process, whose time says nothing of the others'."""
        self._first, self._started = step, time.monotonic()

    def update(self, step: int) -> None:
        """Moves the bar, and logs a line if it has been quiet for long, with more to come."""
        if self._bar is not None:
            self._bar.update(self._row, completed=step)
        now = time.monotonic()
        if step == self._first or step >= self._total:
            return
        is_new = self._is_new and self._seconds_left(step) > QUIET_SECONDS
        if is_new or now - self._shown > QUIET_SECONDS:
            logger.info("step %d/%d; %s left", step, self._total, self.left(step))
            self._note_shown()

    def _note_shown(self) -> None:
        self._shown, self._is_new = time.monotonic(), False

    def log(self, step: int, epoch: float, scores: Mapping[str, float]) -> None:
        """Logs the scores of an evaluation, with the time left."""
        shown = ", ".join(f"{name} {_readable(value)}" for name, value in scores.items())
        self._note_shown()
        logger.info(
            "step %d/%d, epoch %.1f: %s; %s left", step, self._total, epoch, shown, self.left(step)
        )

    def line(self, step: int, text: str) -> None:
        """Logs a line of text, with the time left."""
        logger.info("%s; %s left", text, self.left(step))

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


def _readable(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
