"""Where work shows how far it is: a bar in a terminal, a line in a notebook, else plain lines.

A program that has the package's log at INFO reads the same there, so plain lines are left out.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column

from ensemble.errors import shown

logger = logging.getLogger("ensemble")

PLAIN_SECONDS = 10.0
"""Between two lines where none can be replaced, such as in a file."""
NOTEBOOK_SECONDS = 0.5
"""Between two states of the line in a notebook."""


class Display:
    """Shows nothing; those that show something are derived from it.

    Attributes:
        has_log: whether it shows the lines of the log too, which nobody else reads.
    """

    has_log = False

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

    def __init__(self) -> None:
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=20),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeRemainingColumn(),
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
        self._bar.reset(self._row, description=what, total=total, completed=done, text="")

    def update(self, step: int, scores: str, left: str) -> None:
        self._bar.update(self._row, completed=step, text=scores)

    def end(self, step: int, scores: str, took: str) -> None:
        self._bar.update(self._row, completed=step, text=scores, refresh=True)

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
            self._row = self._bar.add_task("starting", total=None, text="")
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
