"""The ways in which a run ends early, each with one line for the user and an exit status."""

import pathlib
import sys
import sysconfig
import traceback
import types
import unicodedata
from typing import Any

_PACKAGE = str(pathlib.Path(__file__).parent)
_CONFIGS = f"{_PACKAGE}/configs"  # Where users add theirs.
_NOT_OWN = (_PACKAGE, sysconfig.get_path("stdlib"), "<")  # The last is of code without a file.


class UserError(ValueError):
    """Input that cannot be used: one line that states the value, the rule and the remedy."""

    exit_status = 2


class Unregistered(UserError):
    """Names that a file holds and this process cannot use: it may be sound all the same."""


class Damaged(UserError):
    """Examples that cannot be read.

    Args:
        what: is wrong, and where.
        remedy: of it.
    """

    def __init__(self, what: str, remedy: str):
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy


class StoreAway(UserError):
    """Storage that has not answered for long: the same command goes on when it does."""

    exit_status = 75  # As Interrupted.


class RunFailed(RuntimeError):
    """Training that cannot go on, such as an ensemble without a live member."""

    exit_status = 1


class PeerLost(RuntimeError):
    """Another process of the run has ended: the same command, for all, resumes it."""

    exit_status = 75  # As Interrupted.


class Interrupted(KeyboardInterrupt):
    """A run that SIGTERM or Ctrl-C ended, after a checkpoint: the same command resumes it."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h: try again.


def shown(text: str) -> str:
    """Text of a stranger as a terminal may have it: without what would move its cursor."""
    return text if text.isprintable() else ascii(text)


def visible(text: str) -> str:
    """Text of a stranger as a page may have it: no control characters, none that turn it round."""
    return "".join(
        one if one == "\n" or unicodedata.category(one) not in _INVISIBLE else ascii(one)[1:-1]
        for one in text
    )


_INVISIBLE = ("Cc", "Cf", "Co", "Cs")  # Of Unicode: control, format, private use, half characters.


def in_one_line(error: Any, limit: int = 300) -> str:
    """What an error says of what a stranger wrote, or its name: printable, and short."""
    return shown(" ".join(str(error).split())[:limit] or type(error).__name__)


def in_own_code(error: BaseException, limit: int = 200) -> str:
    """What an error in a user's code says and, in front of it, where in that code it is.

    Args:
        error: that was caught.
        limit: of the characters of its message.

    Returns:
        Such as `at mine.py:12 (NameError: name 'x' is not defined)`.
    """
    place = place_in_own_code(error)
    says = f"({type(error).__name__}: {in_one_line(error, limit)})"
    return f"at {place} {says}" if place else says


def place_in_own_code(error: BaseException | None) -> str:
    """File and line of the innermost frame outside of this package and of installed ones.

    Returns:
        Such as `mine.py:12`, of the error or of what it was raised for; empty if there is none.
    """
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        for frame in reversed(frames):
            if _is_own(frame.filename):
                return f"{frame.filename}:{frame.lineno}"
        error = error.__cause__ or error.__context__
    return ""


def calling_place() -> str:
    """File and line of the innermost frame of the user's own code that led here; may be empty."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_own(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_own(file: str) -> bool:
    """Whether a file is the user's: of no package that is installed, and not of this one."""
    if "site-packages" in file or "dist-packages" in file:
        return False
    return file.startswith(_CONFIGS) or not file.startswith(_NOT_OWN)


def first_line(error: Exception) -> str:
    """Returns an error's first line, shortened to what fits in a message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
