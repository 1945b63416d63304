"""Progress of work: its rate, its end, and the display that shows both.

A terminal has a bar, a notebook a line, anything else plain lines. A program that has the package's
log at INFO reads the same there, so plain lines are left out.
"""

import collections
import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column

from ensemble.errors import shown

logger = logging.getLogger("ensemble")

QUIET_SECONDS = 30.0
"""After so long without a line one tells how far the run is."""
EARLY_SECONDS = 5.0
"""Steps take so long before a line tells the time left: the very first ones are slower."""
LINE_SECONDS = 2.0
"""Lines of what was done last are at least so far apart."""
PLAIN_SECONDS = 10.0
"""Between two lines where none can be replaced, such as in a file."""
NOTEBOOK_SECONDS = 0.5
"""Between two states of the line in a notebook."""


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
    _last: tuple[int, float] = (0, 0.0)  # Of the last chunk: member-examples and seconds.

    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self.seconds_before + time.monotonic() - self.started

    def resume(self) -> None:
        """Starts or restarts the measurement of training after other work."""
        self._since = time.monotonic()

    def chunk_done(self, member_examples: int) -> float:
        """Counts a chunk of training that has just ended; returns member-examples/s.

        They are those of this chunk and the one before it. Devices that have much to do may hold
        up the start of a chunk until it is over, so that its time counts as that of the one before.
        """
        now = time.monotonic()
        elapsed, self._since = now - self._since, now
        self.seconds_training += elapsed
        self.member_examples += member_examples
        examples, seconds = self._last
        self._last = member_examples, elapsed
        return (examples + member_examples) / (seconds + elapsed)

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


class Display:
    """Shows nothing; those that show something are derived from it.

    Attributes:
        has_log: whether it shows the lines of the log too, which nobody else reads.
        keeps_scores: whether it shows a line of each evaluation, in place of the log's.
    """

    has_log = False
    keeps_scores = False

    def begin(self, what: str, unit: str, done: int, total: int) -> None:
        """Work of `total` steps begins, or goes on, with `done` of them."""

    def update(self, step: int, scores: str, left: str) -> None:
        """Shows how far it is, what is known, and the time left."""

    def end(self, step: int, scores: str, took: str) -> None:
        """Shows how the work has ended."""

    def tell(self, line: str) -> None:
        """Shows a line of the log."""

    def show(self, text: str) -> None:
        """Shows lines that stay."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Tells how far some work is: lines in the log, and what a display makes of the same.

    Args:
        done: steps already taken.
        total: steps in all.
        what: is going on.
        unit: of the steps.
        display: that shows it too; None for the log alone.
        may_end_early: whether the time left is the most that there may be.
    """

    def __init__(
        self,
        done: int,
        total: int,
        what: str = "training",
        unit: str = "step",
        display: Display | None = None,
        may_end_early: bool = False,
    ):
        self._first, self._total, self._what, self._unit = done, total, what, unit
        self._display = Display() if display is None else display
        self._at_most = "at most " if may_end_early else ""
        self._is_new = True  # No line has told the time left.
        self._began = self._started = self._shown = time.monotonic()
        self._passed = collections.deque([(self._started, done)])  # Moments, and the steps by then.
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
        self._passed = collections.deque([(self._started, step)])

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
        is_early = self._is_new and now - self._started > EARLY_SECONDS
        is_early &= self._seconds_left(step) > QUIET_SECONDS
        if is_early or now - self._shown > QUIET_SECONDS:
            self._log("step %d/%d; %s left", step, self._total, self.left(step))

    def log(self, step: int, epoch: float | None, scores: Mapping[str, float]) -> None:
        """Logs the scores of an evaluation, with the time left, and the epoch if there are some."""
        self._note(step, epoch, scores)
        self._display.update(step, self._known(), self.left(step))
        if self._display.keeps_scores:
            of_each = [f"{name} {_readable(value)}" for name, value in scores.items()]
            told = [self._epoch or f"step {step}", *of_each, f"{self.left(step)} left"]
            self._display.show("  ".join(told))
            self._shown, self._is_new = time.monotonic(), False
            return
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
        """The time that the steps after this one will take, at the pace of the last half."""
        return self._at_most + duration(self._seconds_left(step))

    def _seconds_left(self, step: int) -> float:
        """At the pace since the middle of the time so far: what comes once is soon behind."""
        now = time.monotonic()
        if step > self._passed[-1][1]:
            self._passed.append((now, step))
        while len(self._passed) > 2 and self._passed[1][0] <= (self._started + now) / 2:
            self._passed.popleft()
        since, first = self._passed[0]
        return (now - since) / max(step - first, 1) * (self._total - step)


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


@contextlib.contextmanager
def open_display(show: bool = True) -> Iterator[Display]:
    """Opens the display that suits what stderr is.

    Args:
        show: whether to show anything.
    """
    display = _chosen(show)
    with contextlib.closing(display), _lines_of_the_log(display):
        yield display


def _chosen(show: bool) -> Display:
    if not show or sys.stderr is None:
        return Display()
    if _in_notebook():
        return _Lines(_NotebookLine(), NOTEBOOK_SECONDS)
    if sys.stderr.isatty():
        return _Bar()
    if logger.isEnabledFor(logging.INFO):
        return Display()
    return _Lines(lambda line: print(line, file=sys.stderr, flush=True), PLAIN_SECONDS)


@contextlib.contextmanager
def _lines_of_the_log(display: Display) -> Iterator[None]:
    """Gives a display what the package logs, unless somebody reads it in the log.

    Warnings go where they went before. Tables of several lines are left out, unless their record
    says that it `stays`.
    """
    if type(display) is Display or logger.isEnabledFor(logging.INFO):
        yield
        return
    level, least = logger.level, logger.getEffectiveLevel()

    def take(record: logging.LogRecord) -> bool:
        line = record.getMessage()
        if record.levelno < least and getattr(record, "stays", False):
            display.show("\n".join(map(shown, line.splitlines())))
        elif record.levelno < least and "\n" not in line:
            display.tell(shown(line))
        return record.levelno >= least

    display.has_log = True
    logger.setLevel(logging.INFO)
    logger.addFilter(take)
    try:
        yield
    finally:
        logger.removeFilter(take)
        logger.setLevel(level)


class _Lines(Display):
    """One line after the other.

    Args:
        put: shows a line.
        seconds: from one to the next at least; the first and the last of some work do not wait.
    """

    def __init__(self, put: Callable[[str], None], seconds: float):
        self._put, self._seconds = put, seconds
        self._what, self._total = "", 0
        self._next = 0.0  # When a line may follow.

    def begin(self, what: str, unit: str, done: int, total: int) -> None:
        self._what, self._total = f"{what}: {unit}", total
        self._show(f"{self._at(done, '')}; starting")

    def update(self, step: int, scores: str, left: str) -> None:
        self.tell(f"{self._at(step, scores)}; {left} left")

    def end(self, step: int, scores: str, took: str) -> None:
        self._show(f"{self._at(step, scores)}; took {took}")

    def tell(self, line: str) -> None:
        if time.monotonic() >= self._next:
            self._show(line)

    def _show(self, line: str) -> None:
        self._put(line)
        self._next = time.monotonic() + self._seconds

    def _at(self, step: int, scores: str) -> str:
        return f"{self._what} {step}/{self._total}{scores and ', '}{scores}"


class _Bar(Display):
    """A bar at the bottom of a terminal, with what is known behind it."""

    keeps_scores = True

    def __init__(self) -> None:
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=20),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[left]}"),
            rich_progress.TextColumn(
                "{task.fields[text]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=Console(stderr=True),
            expand=True,
        )
        self._row: Any = None

    def begin(self, what: str, unit: str, done: int, total: int) -> None:
        self._start()
        self._bar.reset(self._row, description=what, total=total, completed=done, text="", left="")

    def update(self, step: int, scores: str, left: str) -> None:
        self._bar.update(self._row, completed=step, text=scores, left=f"{left} left")

    def end(self, step: int, scores: str, took: str) -> None:
        self._bar.update(self._row, completed=step, text=scores, left=took, refresh=True)

    def tell(self, line: str) -> None:
        self._start()
        self._bar.update(self._row, text=line)

    def show(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._row is not None:
            self._bar.stop()

    def _start(self) -> None:
        if self._row is None:
            self._row = self._bar.add_task("starting", total=None, text="", left="")
            self._bar.start()


class _NotebookLine:
    """An output of a notebook's cell that holds the last line."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, line: str) -> None:
        from IPython.display import display  # It is there: a notebook runs this.

        content = {"text/plain": line}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython in a terminal has none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
