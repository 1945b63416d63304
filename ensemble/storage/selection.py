"""The file `selection.json` of a workdir that refers to members of other runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ensemble.errors import InputError
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import Workdir


def is_selection(work: Workdir) -> bool:
    """Whether a workdir refers to members of other runs."""
    return _file(work).exists()


def write_selection(work: Workdir, chosen: Sequence[Mapping[str, Any]]) -> None:
    """Writes which members they are; runs are named from the workdir, so that both may move.

    Args:
        work: Workdir of the selection.
        chosen: `workdir` of each run, numbers of its `members`, ascending, and their `weights`,
            positive; the sum of all weights is 1.
    """
    runs = []
    for one in chosen:
        there = Workdir(one["workdir"])
        path = os.fspath(there.path)
        if not is_remote(path) and not work.is_remote:
            path = os.path.relpath(os.path.realpath(path), os.path.realpath(work.path))
        own = {"workdir": path, "identity": there.identity(), "step": newest_step(there)}
        runs.append(own | {name: one[name] for name in ("members", "weights")})
    work.manifest.write(_file(work), {"runs": runs})


def read_selection(work: Workdir) -> list[tuple[Workdir, list[int], list[float]]]:
    """Reads the workdir of each run, and the numbers and weights of its members.

    Raises:
        InputError: They are damaged, or a run is no longer there, or is another.
    """
    found = []
    for run in work.manifest.read(_file(work))["runs"]:
        path = run["workdir"]
        if not is_remote(path):
            path = os.path.normpath(os.path.join(os.path.realpath(work.path), path))
        there = Workdir(path)
        expected = run["identity"], run["step"]
        if not there.config.exists() or (there.identity(), newest_step(there)) != expected:
            raise InputError(
                f"{work.path} refers to the run {there.path} at step {run['step']}, which is not "
                "there, has gone on, or was replaced; put it back, or select again"
            )
        found.append((there, run["members"], run["weights"]))
    return found


def newest_step(work: Workdir) -> int:
    """The step of a run's newest checkpoint; 0 where there is none."""
    there = work.checkpoints.iterdir() if work.checkpoints.exists() else ()
    return max((int(one.name) for one in there if one.name.isdecimal()), default=0)


def _file(work: Workdir) -> epath.Path:
    return work.path / "selection.json"
