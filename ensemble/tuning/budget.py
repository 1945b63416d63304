"""Works within a budget of time: reads one, ends what is under way, and keeps runs quiet."""

import contextlib
import logging
import math
import re
import threading
from collections.abc import Iterator

from ensemble.errors import InputError
from ensemble.notes import shown_with_the_result
from ensemble.sharding import signals

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

logger = logging.getLogger("ensemble")


def parse_seconds(text: float | str) -> float:
    """Seconds, of a number or of a text such as '90', '90s', '10m' or '1.5h'.

    Raises:
        InputError: it is none, or not positive.
    """
    found = re.fullmatch(r"([0-9.]+)\s*([smh]?)", str(text).strip())
    with contextlib.suppress(ValueError):
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
        if 0 < seconds < math.inf:
            return seconds
    raise InputError(f"a budget of {text!r} must be a positive time, such as 600, 90s, 10m or 2h")


@contextlib.contextmanager
def stop_after(seconds: float, stop: signals.Stop) -> Iterator[None]:
    """Within it, what runs is asked to stop after so long."""
    if math.isinf(seconds):
        yield
        return
    timer = threading.Timer(seconds, stop.note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it, runs log warnings alone."""
    level = logger.level
    logger.setLevel(max(logging.WARNING, logger.getEffectiveLevel()))
    try:
        with shown_with_the_result():
            yield
    finally:
        logger.setLevel(level)
