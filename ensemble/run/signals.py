"""SIGTERM and Ctrl-C: the first stops a run after a checkpoint, of one process or of several."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from absl import logging

from ensemble.sharding import processes


class Stop(Protocol):
    """Whether the run is to stop."""

    def asked(self) -> bool:
        """Called at every chunk's end; of several processes, all get the same answer."""


class _Signalled(threading.Event):
    """A signal to the one process."""

    def asked(self) -> bool:
        """Whether it has come."""
        return self.is_set()


class _SignalledAnywhere:
    """A signal to any of several processes, of which JAX tells the others."""

    def __init__(self) -> None:
        self._calls = 0

    def asked(self) -> bool:
        """Whether it has come, and all are at the same chunk."""
        self._calls += 1
        return processes.may_stop(self._calls)


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Turns the first SIGTERM or Ctrl-C into a stop; a second one ends the process at once."""
    if processes.count() > 1:
        with processes.interrupts_forwarded():
            yield _SignalledAnywhere()
        return
    stop = _Signalled()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may set handlers.
        return
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def note(number: int, _: Any) -> None:
        logging.warning("%s: the run will stop at the next chunk.", signal.Signals(number).name)
        stop.set()
        for each in signals:
            signal.signal(each, before[each])

    for number in signals:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number in signals:
            signal.signal(number, before[number])
