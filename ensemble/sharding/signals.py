"""SIGTERM and Ctrl-C: the first stops a run after a checkpoint, of one process or of several.

The loop asks between chunks, and long searches on the host between iterations. A program ends in
time also where they do not come to ask, such as while XLA compiles: a thread then ends the process,
as soon as the last checkpoint is whole.
"""

import contextlib
import contextvars
import logging
import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ensemble.errors import Interrupted
from ensemble.sharding import processes

logger = logging.getLogger("ensemble")

GUARD_SECONDS = 22.0
"""After so long without an answer to the first signal a program is ended."""
_SAVE_SECONDS = 5.0  # What a checkpoint that is being written may still take then.
_SECOND_SECONDS = 1.0  # What the second signal leaves of the time.
_POLL_SECONDS = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_program: str | None = None  # This process is one, and may be ended.
_current: contextvars.ContextVar["Stop | None"] = contextvars.ContextVar("stop", default=None)
_count = 0  # Runs of this process.


class Stop:
    """Whether a run is to stop.

    Args:
        outer: of what the run is a part of, which it stops with.

    Attributes:
        ending: waits until the last checkpoint is whole, and returns the run's last line.
        by_signal: whether SIGTERM or Ctrl-C has come.
    """

    def __init__(self, outer: "Stop | None" = None) -> None:
        self.by_signal = False
        self._outer = outer
        self.ending: Callable[[], str] = lambda: "interrupted before the run began"
        self._signalled = threading.Event()
        self._settled = threading.Event()
        self._closed = threading.Event()

    def note(self) -> None:
        """Notes that a signal has come, to this process or to another one of the run."""
        self._signalled.set()

    def asked(self) -> bool:
        """Whether the run is to stop; of several processes, all ask alike and hear the same."""
        return bool(processes.tell(int(self._is_noted())))

    def _is_noted(self) -> bool:
        return self._signalled.is_set() or (self._outer is not None and self._outer._is_noted())

    def settle(self) -> None:
        """Notes that the loop is about to save and end: nobody else needs to."""
        self._settled.set()

    def watch(self, signals: int, key: str) -> None:
        """Waits for signals, in a thread, and ends the process if the loop does not.

        Args:
            signals: descriptor from which their numbers can be read.
            key: by which several processes tell each other.
        """
        deadline = None
        while not self._closed.is_set():
            ready, _, _ = select.select([signals], [], [], _POLL_SECONDS)
            came = os.read(signals, 64) if ready else b""
            for number in filter(_SIGNALS.__contains__, came):
                if deadline is None:
                    deadline = time.monotonic() + GUARD_SECONDS
                    self._announce(number, key)
                elif processes.count() == 1:
                    deadline = min(deadline, time.monotonic() + _SECOND_SECONDS)
            if deadline is None and processes.is_posted(key):
                self.note()
                deadline = time.monotonic() + GUARD_SECONDS
            late = deadline is not None and time.monotonic() > deadline
            if late and _program and not self._settled.is_set():
                self._end(_program)

    def close(self) -> None:
        """Ends `watch`."""
        self._closed.set()

    def _announce(self, number: int, key: str) -> None:
        self.note()
        name = signal.Signals(number).name
        if processes.count() > 1:
            line = "%s: all processes will stop in some seconds, after a checkpoint."
            logger.warning(line, name)
            processes.post(key)
        else:
            logger.warning("%s: the run will stop at the next chunk.", name)

    def _end(self, program: str) -> None:
        """Ends the process, with the run's last line."""
        words: list[str] = []
        thread = threading.Thread(target=lambda: words.append(self.ending()), daemon=True)
        thread.start()
        thread.join(_SAVE_SECONDS)
        if self._settled.is_set() or self._closed.is_set():
            return
        line = words[0] if words else f"interrupted during a checkpoint; {resume_line()}"
        cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # The bar has hidden it.
        print(f"{cursor}{program}: {line}", file=sys.stderr, flush=True)
        processes.end(Interrupted.exit_status)
        os._exit(Interrupted.exit_status)


def check() -> None:
    """Ends a long search where the run is to stop; of several processes, all call it alike.

    Raises:
        Interrupted: it is.
    """
    stop = _current.get()
    if stop is not None and stop.asked():
        stop.settle()
        line = stop.ending()
        processes.wait_for_all("interrupted")
        raise Interrupted(line)


def resume_line() -> str:
    """How an interrupted run goes on."""
    if processes.count() > 1:  # This process's own command would not do.
        return "resume with: the same command, for all processes"
    return f"resume with: {shlex.join([sys.executable, *sys.orig_argv[1:]])}"


def program() -> str:
    """What messages call this process."""
    return _program or "train.py"


@contextlib.contextmanager
def in_program(name: str) -> Iterator[None]:
    """Says that this process is a program of ours, which may be ended; not a user's notebook.

    Args:
        name: for messages.
    """
    global _program
    before, _program = _program, name
    try:
        yield
    finally:
        _program = before


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Turns the first SIGTERM or Ctrl-C into a stop; a second one ends the process at once.

    Several processes ignore the second one: a terminal and a launcher may both have sent one.
    """
    global _count
    outer = _current.get()
    stop = Stop(outer)
    _count += 1
    token = _current.set(stop)
    try:
        if threading.current_thread() is threading.main_thread():  # Which alone may set handlers.
            with _handled(stop, f"ensemble/stop/{_count}"):
                yield stop
        else:
            yield stop
    finally:
        _current.reset(token)
        if outer is not None and stop.by_signal:  # It may have come when this run had ended.
            outer.by_signal = True
            outer.note()


@contextlib.contextmanager
def _handled(stop: Stop, key: str) -> Iterator[None]:
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}

    def note(number: int, _: Any) -> None:
        stop.by_signal = True
        stop.note()
        for each in _SIGNALS if processes.count() == 1 else ():
            signal.signal(each, before[each])

    # Python calls a handler when C returns to it, but writes the number to a pipe at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, note)
    thread = threading.Thread(target=stop.watch, args=(reader, key), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])
        signal.set_wakeup_fd(wakeup_before)
        stop.close()
        os.close(writer)  # Wakes the thread.
        thread.join()
        os.close(reader)
