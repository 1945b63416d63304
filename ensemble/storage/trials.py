"""The file `trials.json` of a workdir whose runs are trials of a search or of a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from ensemble.config import differences
from ensemble.errors import InputError
from ensemble.storage.workdir import Workdir

SEARCH = "search"
COMPARISON = "comparison of methods"


class Trial(NamedTuple):
    """A trial that has ended.

    Attributes:
        name: Folder of its run in `runs`.
        settings: Keys in which it differs from the configuration of all trials.
        seconds: Cost, over all processes.
        cpu_seconds: Likewise, of all threads.
        score: Lower is better; None: it failed.
        failure: Why it failed; empty if it did not.
        details: Further results.
    """

    name: str
    settings: Mapping[str, Any]
    seconds: float
    cpu_seconds: float
    score: float | None = None
    failure: str = ""
    details: Mapping[str, Any] = {}


@dataclasses.dataclass
class Table:
    """What was tried so far.

    Attributes:
        purpose: `SEARCH` or `COMPARISON`.
        config: Configuration of all trials, flat.
        trials: Trials that have ended, by name, in their order.
        seconds: Seconds of a trial under way, and its CPU seconds.
        running: Name of that trial, and when this process began it, in seconds since the epoch.
        fingerprint: Of the data; empty until a trial has ended well.
    """

    purpose: str
    config: Mapping[str, Any]
    trials: dict[str, Trial] = dataclasses.field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)
    running: tuple[str, float] | None = None
    fingerprint: str = ""

    @property
    def spent(self) -> float:
        """Seconds of all trials."""
        return self.seconds[0] + sum(one.seconds for one in self.trials.values())

    @property
    def scored(self) -> list[Trial]:
        """Trials that have ended well."""
        return [one for one in self.trials.values() if one.score is not None]


def purpose_of(work: Workdir) -> str:
    """The purpose of the trials in a workdir; empty if it has none."""
    return str(work.manifest.read(_file(work)).get("purpose", ""))


def write_table(work: Workdir, table: Table) -> None:
    """Writes what was tried so far."""
    trials = [one._asdict() for one in table.trials.values()]
    work.manifest.write(_file(work), {**vars(table), "trials": trials})


def read_table(work: Workdir, purpose: str, config: Mapping[str, Any]) -> Table:
    """Reads the table of a workdir; a new one has no trials.

    Args:
        work: Workdir of the trials.
        purpose: `SEARCH` or `COMPARISON`.
        config: Configuration of all trials, as it is now.

    Raises:
        InputError: The table is damaged, or of another purpose or configuration.
    """
    content = work.manifest.read(_file(work))
    if not content:
        return Table(purpose, config)
    trials = {one["name"]: Trial(**one) for one in content["trials"]}
    table = Table(**{**content, "trials": trials})
    if table.purpose != purpose:
        raise InputError(f"{work.path} holds a {table.purpose}. Choose another --workdir")
    if changed := differences(table.config, config):
        raise InputError(
            f"{work.path} holds a {purpose} with another configuration: {'; '.join(changed)}. Set "
            "it as it was, or choose another --workdir"
        )
    return table


def _file(work: Workdir) -> epath.Path:
    return work.path / "trials.json"
