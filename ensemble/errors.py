"""The ways in which a run ends early, each with one line for the user and an exit status."""

import unicodedata
from typing import Any


class UserError(ValueError):
    """Input that cannot be used: one line that states the value, the rule and the remedy."""

    exit_status = 2


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


def first_line(error: Exception) -> str:
    """Returns an error's first line, shortened to what fits in a message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
