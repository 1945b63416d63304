"""Progress of work: one line with its rate and the time left, where a user sees it.

A terminal and a notebook replace the line. A file gets one every ten seconds, the log of a program
that shows it at INFO one every half minute.
"""

import datetime
import logging
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ensemble.errors import logger, printable
from ensemble.pytrees import ByName

_EARLY_SECONDS = 5.0
"""No line follows the first step, which compiles, for so long: the next ones may compile, too."""
_MOST_WAITS = 1000
"""The latest waits for steps that the pace is of."""


@dataclass
class Clock:
    """The seconds of a run, over all the processes that it took.

    Attributes:
        started: `time.monotonic()` at which this process began the run.
        seconds_before: what earlier processes of the run took.
        seconds_training: spent in training steps and on what ends members early, without
            compilation, evaluation and writing.
        member_examples: examples seen, summed over members.
    """

    started: float = field(default_factory=time.monotonic)
    seconds_before: float = 0.0
    seconds_training: float = 0.0
    member_examples: int = 0

    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self.seconds_before + time.monotonic() - self.started

    def state(self) -> ByName:
        """What a checkpoint keeps of the clock: all but `started` for the one that goes on."""
        return {**asdict(self), "seconds_before": self.seconds()}

    def timing(self) -> ByName:
        """Returns the report's entry."""
        rate = self.member_examples / self.seconds_training if self.seconds_training else None
        return {"seconds_total": self.seconds(), "member_examples_per_second": rate}


_SECONDS = {"log": 30.0, "plain": 10.0, "terminal": 0.1, "notebook": 0.5}
"""Kinds of displays, and the least time between two lines of each."""


class Display:
    """Lines of progress in the log, on stderr, or below a notebook's cell.

    Args:
        kind: `log`; `plain`, one line after the other on stderr; `terminal`, its last line, written
            anew; or `notebook`, an output of a cell that holds the line.
    """

    def __init__(self, kind: str = "log") -> None:
        self.kind = kind
        self._next = 0.0  # When a line may follow.
        self.is_there = False  # A line of a terminal.
        self._handle: Any = None

    def wait(self) -> None:
        """Delays the next line, until steps take as long as they will."""
        self._next = time.monotonic() + min(_SECONDS[self.kind], _EARLY_SECONDS)

    def is_due(self) -> bool:
        """Whether the last line has not just come."""
        return time.monotonic() >= self._next

    def put(self, text: str, stays: bool = False) -> None:
        """Shows a line in place of the last one, or lines that stay."""
        text = printable(text)
        self._next = time.monotonic() + _SECONDS[self.kind]
        if self.kind == "log":
            logger.info("%s", text)
        elif self.kind == "notebook" and not stays:
            from IPython.display import display  # It is there: a notebook runs this.

            content = {"text/plain": text}
            if self._handle is None:
                self._handle = display(content, raw=True, display_id=True)
            else:
                self._handle.update(content, raw=True)
        else:
            self.clear()
            self.is_there = self.kind == "terminal" and not stays
            if self.is_there:
                text = text[: shutil.get_terminal_size().columns - 1]
            print(text, end="" if self.is_there else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Makes room for a line that somebody else writes."""
        if self.kind == "terminal":
            print(end="\r\x1b[K", file=sys.stderr, flush=True)
            self.is_there = False


class Progress(AbstractContextManager["Progress"]):
    """How far some work is: step, time left, steps a second, and what is known by then.

    Args:
        done: Steps already taken.
        total: Steps in all.
        display: Where the line is shown.
        what: Name of the work.
        unit: Name of a step.
    """

    def __init__(
        self, done: int, total: int, display: Display, what: str = "training", unit: str = "step"
    ):
        self._total = total
        self._display = display
        self._unit = unit
        self._what = what
        self._known: ByName = {}
        self._began = time.monotonic()
        self.compiled(done)
        self._edge("starting")

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is None:
            self._edge(f"took {duration(time.monotonic() - self._began)}")

    def _edge(self, how: str) -> None:
        """Shows the first or last line; the log has other ones then."""
        if self._display.kind != "log":
            self._display.put(self._line(how))

    def compiled(self, step: int) -> None:
        """Forgets the steps up to this one, whose time says nothing of the others'."""
        self._step = step
        self._last = time.monotonic()
        self._waits = deque[tuple[float, int]](maxlen=_MOST_WAITS)
        self._display.wait()

    def update(self, step: int, known: Any = (), stays: bool = False) -> None:
        """Shows the progress.

        Args:
            step: Last step that was taken.
            known: New scores, epoch and the like by name; earlier ones stay in sight.
            stays: Whether the line should stay, as that of an evaluation.
        """
        self._known.update(known)
        if step > self._step:
            now = time.monotonic()
            self._waits.append((now - self._last, step - self._step))
            self._last = now
            self._step = step
        stays = stays and self._display.kind in ("log", "terminal")
        if stays or self._display.is_due():
            self._display.put(self._line(self._pace()), stays)

    def _pace(self) -> str:
        """Time left and steps a second.

        The longest wait does not count: something compiled, or it was the first evaluation.
        """
        if not self._waits:
            return "starting"
        seconds, steps = np.sum(sorted(self._waits)[: max(1, len(self._waits) - 1)], axis=0)
        rate = steps / max(seconds, 1e-9)
        speed = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        return f"{duration((self._total - self._step) / rate)} left, {speed} {self._unit}s/s"

    def _line(self, how: str) -> str:
        known = (
            f"{name} {value if isinstance(value, str) else format(value, ',.4g')}"
            for name, value in self._known.items()
        )
        where = f"{self._what}: {self._unit} {self._step}/{self._total}, {how}"
        return "; ".join(filter(None, (where, ", ".join(known))))


def duration(seconds: float) -> str:
    """Returns seconds as h:mm:ss."""
    return str(datetime.timedelta(seconds=round(seconds)))


@contextmanager
def open_display(show: bool = True) -> Iterator[Display]:
    """Opens the display that suits what stderr is.

    It shows what the package logs, too, unless somebody reads that in the log: single lines, and
    tables whose record says that it `stays`.

    Args:
        show: If False, show nothing on stderr.
    """
    level, least = logger.level, logger.getEffectiveLevel()
    display = Display(_kind(least) if show and sys.stderr is not None else "log")
    if display.kind == "log":
        yield display
        return

    def take(record: logging.LogRecord) -> bool:
        line = record.getMessage()
        stays = getattr(record, "stays", False)
        if record.levelno >= least:
            display.clear()
        elif stays or (display.is_due() and "\n" not in line):
            display.put(line, stays)
        return record.levelno >= least

    logger.setLevel(min(least, logging.INFO))
    logger.addFilter(take)
    try:
        yield display
    finally:
        logger.removeFilter(take)
        logger.setLevel(level)
        if display.is_there:
            print(file=sys.stderr)  # Ends the line of a terminal.


def _kind(least: int) -> str:
    """The kind of display that suits what stderr is."""
    # A kernel of Jupyter; IPython in a terminal has none.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is not None:
        return "notebook"
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return "terminal"
    return "plain" if least > logging.INFO else "log"
