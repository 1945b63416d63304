"""The ways in which a run ends early, each with one line for the user and an exit status."""

import logging
import sysconfig
import traceback
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger("ensemble")
"""Logger of all modules."""
_PACKAGE = str(Path(__file__).parent)
_CONFIGS = f"{_PACKAGE}/configs"  # Where users add theirs.
_NOT_OWN = (_PACKAGE, sysconfig.get_path("stdlib"), "<")  # The last is of code without a file.


class InputError(ValueError):
    """Input that cannot be used: one line that states the value, the rule and the remedy."""

    exit_status = 2


class CorruptDataError(InputError):
    """Examples that cannot be read.

    Args:
        what: is wrong, and where.
        remedy: of it.
    """

    def __init__(self, what: str, remedy: str):
        super().__init__(f"{what}; {remedy}")
        self.what = what


class StorageError(InputError):
    """Storage that has not answered for long: the same command goes on when it does."""

    exit_status = 75  # As Interrupted.


class TrainingError(RuntimeError):
    """Training that cannot go on, such as an ensemble without a live member."""

    exit_status = 1


class ProcessLostError(RuntimeError):
    """Another process of the run has ended: the same command, for all, resumes it."""

    exit_status = 75  # As Interrupted.


class Interrupted(KeyboardInterrupt):
    """A run that SIGTERM or Ctrl-C ended, after a checkpoint: the same command resumes it."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h: try again.


def shown(text: str) -> str:
    """Text of a stranger as a terminal may have it: without what would move its cursor."""
    return text if text.isprintable() else ascii(text)


def printable(text: str, joint: str = "\n") -> str:
    """Lines of a stranger as a terminal may have them, by default one below the other."""
    return joint.join(map(shown, text.splitlines()))


def listed(names: Sequence[str], most: int = 6, separator: str = ", ") -> str:
    """Names in a line, the first few of many."""
    more = f" and {len(names) - most} more" * (len(names) > most)
    return separator.join(names[:most]) + more


def plural(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def aligned(rows: Iterable[Sequence[str]], flush_left: Collection[int] = (0,)) -> list[str]:
    """Lines of a table of texts, whose columns are flush right except for some."""
    columns = []
    for k, column in enumerate(zip(*rows, strict=True)):
        align = str.ljust if k in flush_left else str.rjust
        columns.append([align(cell, max(map(len, column))) for cell in column])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def quoted(names: Sequence[str], most: int = 6) -> str:
    """Texts of a stranger in quotes, in a line, the first few of many."""
    return listed([shown(repr(one[:_LONGEST])) for one in names], most)


def visible(text: str) -> str:
    """Text of a stranger as a page may have it: no control characters, none that turn it round."""
    return "".join(
        one if one == "\n" or unicodedata.category(one) not in _INVISIBLE else ascii(one)[1:-1]
        for one in text
    )


_LONGEST = 40
"""Characters of a text that are shown."""
_INVISIBLE = ("Cc", "Cf", "Co", "Cs")  # Of Unicode: control, format, private use, half characters.


def in_one_line(error: Any, limit: int = 300) -> str:
    """What an error says of what a stranger wrote, or its name: printable, and short."""
    return shown(" ".join(str(error).split())[:limit] or type(error).__name__)


def in_own_code(error: BaseException) -> str:
    """What an error in a user's code says and, in front of it, where in that code it is.

    Args:
        error: that was caught.

    Returns:
        Such as `at mine.py:12 (NameError: name 'x' is not defined)`.
    """
    place = place_in_own_code(error)
    says = f"({type(error).__name__}: {in_one_line(error, 200)})"
    return f"at {place} {says}" if place else says


def place_in_own_code(error: BaseException | None) -> str:
    """File and line of the innermost frame outside of this package and of installed ones.

    Returns:
        Such as `mine.py:12`, of the error or of what it was raised for; empty if there is none.
    """
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if places := [f"{one.filename}:{one.lineno}" for one in frames if is_own(one.filename)]:
            return places[-1]
        error = error.__cause__ or error.__context__
    return ""


def is_own(file: str) -> bool:
    """Whether a file is the user's: of no package that is installed, and not of this one."""
    is_installed = "site-packages" in file or "dist-packages" in file
    return not is_installed and (file.startswith(_CONFIGS) or not file.startswith(_NOT_OWN))
