"""The file `trials.json` of a workdir whose runs are trials of a search or of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from ensemble.storage.workdir import Workdir

SEARCH = "search"
COMPARISON = "comparison of methods"


class Trial(NamedTuple):
    """A trial.

    Attributes:
        name: Folder of its run in `runs`.
        settings: Keys in which it differs from the configuration of all trials.
        seconds: Cost, over all processes.
        score: Lower is better; None: it failed, or is under way.
        failure: Why it failed; empty if it did not.
        details: Further results.
    """

    name: str
    settings: Mapping[str, Any]
    seconds: float = 0.0
    score: float | None = None
    failure: str = ""
    details: Mapping[str, Any] = {}

    @property
    def has_ended(self) -> bool:
        """Whether it has a score, or failed."""
        return self.score is not None or bool(self.failure)


def trials_file(work: Workdir) -> epath.Path:
    """Path of the file."""
    return work.path / "trials.json"


def purpose_of(work: Workdir) -> str:
    """The purpose of the trials in a workdir; empty if it has none."""
    return str(work.manifest.read(trials_file(work)).get("purpose", ""))
