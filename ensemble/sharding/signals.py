"""SIGTERM and Ctrl-C: the first stops a run after a checkpoint, of one process or of several.

The loop asks between chunks, and long searches on the host between iterations. A program ends in
time also where they do not come to ask, such as while XLA compiles: a thread then ends the process,
as soon as the last checkpoint is whole.
"""

import contextvars
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from ensemble.errors import Interrupted, logger
from ensemble.sharding import processes

GUARD_SECONDS = 22.0
"""After so long without an answer to the first signal a program is ended."""
_POLL_SECONDS = 0.5
_FAULT_POLLS = 6  # At which a fault of another process is found before this one is ended by it.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

program: str | None = None
"""Name of the program that this process is, which may be ended; None: a user's notebook."""
_current: contextvars.ContextVar["Stop | None"] = contextvars.ContextVar("stop", default=None)
_count = 0  # Runs of this process.


@dataclass(eq=False)
class Stop:
    """Whether a run is to stop.

    Attributes:
        outer: of what the run is a part of, which it stops with.
        by_signal: whether SIGTERM or Ctrl-C has come.
        is_settled: whether the loop is about to save and end: nobody else needs to.
        is_closed: whether the run has ended.
        ends_well: whether the run is to end with the result of its last step.
        is_noted: whether somebody has asked for it.
    """

    outer: "Stop | None" = None
    by_signal: bool = False
    is_settled: bool = False
    is_closed: bool = False
    ends_well: bool = False
    is_noted: bool = False

    def note(self) -> None:
        """Notes that the run is to stop."""
        self.is_noted = True

    def finish(self) -> None:
        """Asks the run to stop, and to end as if it had taken all its steps."""
        self.ends_well = True
        self.note()

    def finishes(self) -> bool:
        """Whether the run is to end as if it had taken all its steps."""
        is_outer = self.outer is not None and self.outer.finishes()
        return not self.by_signal and (self.ends_well or is_outer)

    def asked(self) -> bool:
        """Whether the run is to stop; of several processes, all ask alike and hear the same."""
        return bool(processes.tell(self._is_asked()))

    def _is_asked(self) -> bool:
        return self.is_noted or (self.outer is not None and self.outer._is_asked())

    def watch(self, signals: int, key: str) -> None:
        """Waits for signals, in a thread, and ends the process if the loop does not.

        It also ends one that waits for another process in vain.

        Args:
            signals: descriptor from which their numbers can be read.
            key: by which several processes tell each other.
        """
        deadline = math.inf
        num_faults = 0
        while not self.is_closed:
            ready, _, _ = select.select([signals], [], [], _POLL_SECONDS)
            now = time.monotonic()
            came = [one for one in (os.read(signals, 64) if ready else b"") if one in _SIGNALS]
            name = signal.Signals(came[0]).name if came else processes.posted(key)
            if name and deadline == math.inf:
                deadline = now + GUARD_SECONDS
                self.note()
                logger.warning("%s: the run will stop at the next chunk.", name)
                processes.post(key, name)
            if program is None:
                continue
            fault = processes.fault()
            num_faults = num_faults + 1 if fault else 0
            if num_faults > _FAULT_POLLS:
                _end(fault)
            elif now > deadline and not self.is_settled:
                _end(self.last_line())

    def last_line(self, where: str = "") -> str:
        """Returns the line with which a run ends early, such as ` at step 5 of 9`."""
        return f"interrupted{where}; resume with: the same command, if it has a workdir"


def _end(line: str) -> None:
    """Ends the process with a line."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # The line of progress.
    print(f"{clear}{program}: {line}", file=sys.stderr, flush=True)
    processes.end(Interrupted.exit_status)
    os._exit(Interrupted.exit_status)


def check() -> bool:
    """Ends a long search where the run is to stop; of several processes, all call it alike.

    Returns:
        True if the run is to end well, with what there is.

    Raises:
        Interrupted: The run is to stop.
    """
    stop = _current.get()
    if stop is None or not stop.asked():
        return False
    if not stop.finishes():
        stop.is_settled = True
        processes.wait_for_all("interrupted")
        raise Interrupted(stop.last_line())
    return True


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Turns the first SIGTERM or Ctrl-C into a stop; a second one ends the process at once.

    Several processes ignore the second one: a terminal and a launcher may both have sent one.
    """
    global _count
    outer = _current.get()
    stop = Stop(outer)
    _count += 1
    token = _current.set(stop)
    # The main thread alone may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with _handled(stop, f"stop/{_count}") if is_main else nullcontext():
            yield stop
    finally:
        _current.reset(token)
        if outer is not None and stop.by_signal:  # It may have come when this run had ended.
            outer.by_signal = True
            outer.note()


@contextmanager
def _handled(stop: Stop, key: str) -> Iterator[None]:
    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def note(number: int, _) -> None:
        stop.by_signal = True
        stop.note()
        if processes.count() == 1:
            restore()

    # Python calls a handler when C returns to it, but writes the number to a pipe at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, note) for number in _SIGNALS}
    thread = threading.Thread(target=stop.watch, args=(reader, key), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        restore()
        signal.set_wakeup_fd(wakeup_before)
        stop.is_closed = True
        os.close(writer)  # Wakes the thread.
        thread.join()
        os.close(reader)
