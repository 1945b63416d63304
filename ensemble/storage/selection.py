"""The file `selection.json` of a workdir that refers to members of other runs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from ensemble.config import FORMAT
from ensemble.errors import UserError, in_one_line
from ensemble.storage.files import write_file
from ensemble.storage.paths import is_remote
from ensemble.storage.schema import checksum, parse, to_json
from ensemble.storage.workdir import Workdir, check_size

_MAX_BYTES = 10_000_000


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
    content: dict[str, Any] = {"format": FORMAT, "identity": work.identity(), "runs": runs}
    content["checksum"] = checksum(content)
    write_file(_file(work), to_json(content))


def read_selection(work: Workdir) -> list[Selected]:
    """Reads what `write_selection` wrote.

    Raises:
        UserError: it is damaged, or a run is no longer there, or is another.
    """
    path = _file(work)
    check_size(path, _MAX_BYTES)
    try:
        content = parse(path.read_bytes())
        if content.pop("checksum", None) != checksum(content):
            raise ValueError("its checksum does not agree with its content")
        identity = content["identity"]
        runs = [(str(run["workdir"]), _checked(run)) for run in content["runs"]]
        if not runs:
            raise ValueError("it names no run")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged or not of this program ({in_one_line(error)}); select again"
        ) from None
    work.check_belongs(path, identity)
    return [_found(work, name, run) for name, run in runs]


def _file(work: Workdir) -> epath.Path:
    return work.path / "selection.json"


def _name_from(work: Workdir, other: Workdir) -> str:
    if is_remote(work.path) or is_remote(other.path):
        return os.fspath(other.path)
    return os.path.relpath(os.path.realpath(other.path), os.path.realpath(work.path))


def _checked(run: Any) -> dict[str, Any]:
    """An entry whose members and weights are as they must be; raises what is caught above."""
    members, weights = run["members"], run["weights"]
    whole = all(type(k) is int and k >= 0 for k in members)
    if not members or not whole or sorted(set(members)) != members:
        raise ValueError("members must be whole numbers, ascending")
    if len(weights) != len(members) or not all(0 < one < math.inf for one in weights):
        raise ValueError("weights must be positive, one for each member")
    if type(run["step"]) is not int:
        raise ValueError("step must be a whole number")
    return {key: run[key] for key in ("identity", "members", "weights", "step")}


def _found(work: Workdir, name: str, run: Mapping[str, Any]) -> Selected:
    """The run that an entry speaks of."""
    base = os.path.realpath(work.path) if not is_remote(work.path) else os.fspath(work.path)
    there = Workdir(name if is_remote(epath.Path(name)) else os.path.normpath(f"{base}/{name}"))
    if not there.config.exists():
        raise UserError(
            f"{work.path} refers to the run {there.path}, which is not there; put it back, or "
            "select again"
        )
    if there.identity() != run["identity"]:
        raise UserError(
            f"{work.path} refers to another run than is now in {there.path}; put that back, or "
            "select again"
        )
    if newest_step(there) != run["step"]:
        raise UserError(
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
