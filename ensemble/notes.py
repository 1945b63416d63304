"""Notes: what a user probably did not mean, or should know of a run, in one line each.

`note` logs a line as a warning at once. The run that is under way keeps it: `results.json` has the
notes of its run, the terminal shows them under the table, and `load` and `evaluate` repeat them.
`conclude` does the same with what is found at the end, but logs nothing if the table comes next.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ensemble.errors import logger

_collections: list[list[str]] = []
_shown_later: list[bool] = []


def note(line: str) -> None:
    """Says a line, once in each run."""
    if line in said():
        return
    logger.warning("%s", line)
    recall([line])


def conclude(lines: Iterable[str]) -> None:
    """Says lines of a run that has ended, or only keeps them if they are shown with its result."""
    for line in lines:
        if _shown_later:
            recall([line])
        else:
            note(line)


@contextmanager
def shown_with_the_result() -> Iterator[None]:
    """Within it, a run ends in silence: whoever starts it shows its report."""
    _shown_later.append(True)
    try:
        yield
    finally:
        _shown_later.pop()


def said() -> list[str]:
    """The lines of the run that is under way."""
    return [*_collections[-1]] if _collections else []


def recall(lines: Iterable[str]) -> None:
    """Takes over the lines that an earlier process has said of the run."""
    for known in _collections:
        known.extend(line for line in lines if line not in known)


@contextmanager
def collected() -> Iterator[list[str]]:
    """Within it, the lines that are said; the list grows."""
    lines: list[str] = []
    _collections.append(lines)
    try:
        yield lines
    finally:
        # Runs in threads may have said the same: the one that ends is found by identity.
        _collections[:] = [one for one in _collections if one is not lines]
