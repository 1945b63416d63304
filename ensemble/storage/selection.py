"""The file `selection.json` of a workdir that refers to members of other runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from etils import epath

from ensemble.errors import InputError
from ensemble.storage.json_files import to_json
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import Workdir


class Selected(NamedTuple):
    """Members of a run, and how much each counts.

    Attributes:
        work: of the run.
        identity: of the run.
        members: their numbers there, ascending.
        weights: of each, positive; of all runs together their sum is 1.
        step: of the run's newest checkpoint when it was selected from.
    """

    work: Workdir
    identity: str
    members: Sequence[int]
    weights: Sequence[float]
    step: int


def is_selection(work: Workdir) -> bool:
    """Whether a workdir refers to members of other runs."""
    return _file(work).exists()


def write_selection(work: Workdir, chosen: Sequence[Selected]) -> None:
    """Writes which members they are; runs are named from the workdir, so that both may move."""
    runs = [
        {
            "workdir": _name_from(work, one.work),
            "identity": one.identity,
            "members": list(one.members),
            "weights": list(one.weights),
            "step": one.step,
        }
        for one in chosen
    ]
    work.manifest.write(_file(work), to_json({"runs": runs}))


def read_selection(work: Workdir) -> list[Selected]:
    """Reads what `write_selection` wrote.

    Raises:
        InputError: it is damaged, or a run is no longer there, or is another.
    """
    return [_found(work, **run) for run in work.manifest.read(_file(work))["runs"]]


def _file(work: Workdir) -> epath.Path:
    return work.path / "selection.json"


def _name_from(work: Workdir, other: Workdir) -> str:
    if is_remote(work.path) or is_remote(other.path):
        return os.fspath(other.path)
    return os.path.relpath(os.path.realpath(other.path), os.path.realpath(work.path))


def _found(work: Workdir, workdir: str, **run: Any) -> Selected:
    """The run that an entry speaks of."""
    base = os.path.realpath(work.path) if not is_remote(work.path) else os.fspath(work.path)
    there = Workdir(
        workdir if is_remote(epath.Path(workdir)) else os.path.normpath(f"{base}/{workdir}")
    )
    if not there.config.exists():
        raise InputError(
            f"{work.path} refers to the run {there.path}, which is not there; put it back, or "
            "select again"
        )
    if there.identity() != run["identity"]:
        raise InputError(
            f"{work.path} refers to another run than is now in {there.path}; put that back, or "
            "select again"
        )
    if newest_step(there) != run["step"]:
        raise InputError(
            f"{work.path} refers to the run {there.path} at step {run['step']}, and that has gone "
            "on; select again"
        )
    return Selected(there, **run)


def newest_step(work: Workdir) -> int:
    """The step of a run's newest checkpoint; 0 where there is none."""
    if not work.checkpoints.exists():
        return 0
    names = [one.name for one in work.checkpoints.iterdir()]
    return max((int(name) for name in names if name.isdigit()), default=0)
