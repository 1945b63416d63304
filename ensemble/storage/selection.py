"""The file `selection.json` of a workdir that refers to members of other runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath

from ensemble.errors import InputError
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import Workdir


class Selected(NamedTuple):
    """Members of a run, and how much each counts.

    Attributes:
        work: Workdir of the run.
        identity: Identity of the run.
        members: Their numbers there, ascending.
        weights: Weight of each, positive; of all runs together their sum is 1.
        step: Step of the run's newest checkpoint when it was selected from.
    """

    work: Workdir
    identity: str
    members: Sequence[int]
    weights: Sequence[float]
    step: int


_ENTRIES = Selected._fields[1:]


def is_selection(work: Workdir) -> bool:
    """Whether a workdir refers to members of other runs."""
    return _file(work).exists()


def write_selection(work: Workdir, chosen: Sequence[Selected]) -> None:
    """Writes which members they are; runs are named from the workdir, so that both may move."""
    runs = []
    for one in chosen:
        path = os.fspath(one.work.path)
        if not is_remote(path) and not work.is_remote:
            path = os.path.relpath(os.path.realpath(path), os.path.realpath(work.path))
        runs.append({"workdir": path, **dict(zip(_ENTRIES, one[1:], strict=True))})
    work.manifest.write(_file(work), {"runs": runs})


def read_selection(work: Workdir) -> list[Selected]:
    """Reads what `write_selection` wrote.

    Raises:
        InputError: It is damaged, or a run is no longer there, or is another.
    """
    found = []
    for run in work.manifest.read(_file(work))["runs"]:
        path = run["workdir"]
        if not is_remote(path):
            path = os.path.normpath(os.path.join(os.path.realpath(work.path), path))
        one = Selected(Workdir(path), *(run[name] for name in _ENTRIES))
        there = one.work
        if not there.config.exists() or (there.identity(), newest_step(there)) != one[1::3]:
            raise InputError(
                f"{work.path} refers to the run {there.path} at step {one.step}, which is not "
                "there, has gone on, or was replaced; put it back, or select again"
            )
        found.append(one)
    return found


def newest_step(work: Workdir) -> int:
    """The step of a run's newest checkpoint; 0 where there is none."""
    there = work.checkpoints.iterdir() if work.checkpoints.exists() else ()
    return max((int(one.name) for one in there if one.name.isdecimal()), default=0)


def _file(work: Workdir) -> epath.Path:
    return work.path / "selection.json"
