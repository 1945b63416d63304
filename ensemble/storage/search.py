"""The file `search.json` of a workdir in which families are tried: what was tried so far."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from ensemble.config import differences
from ensemble.errors import UserError
from ensemble.storage.checked import read_checked, write_checked
from ensemble.storage.workdir import Workdir


class Tried(NamedTuple):
    """A trial that has ended.

    Attributes:
        family: its number.
        settings: keys of the family that differ from the default's.
        num_epochs: that it trained for at most.
        nll: of rows held out, nats; None: it failed.
        seconds: that it took, over all processes.
        failure: why it failed; empty if it did not.
    """

    family: int
    settings: Mapping[str, Any]
    num_epochs: int
    nll: float | None
    seconds: float
    failure: str = ""


@dataclasses.dataclass
class Search:
    """What a workdir says of a search.

    Attributes:
        config: of the default family, flat.
        tried: the trials that have ended, in their order.
        seconds: that a trial under way has taken so far.
        fingerprint: of the data; empty as long as no trial has ended well.
    """

    config: Mapping[str, Any]
    tried: list[Tried]
    seconds: float = 0.0
    fingerprint: str = ""

    @property
    def spent(self) -> float:
        """Seconds of all trials."""
        return sum(one.seconds for one in self.tried) + self.seconds

    @property
    def has_found(self) -> bool:
        """Whether a trial has ended well."""
        return any(one.nll is not None for one in self.tried)

    @property
    def shortest(self) -> float:
        """Seconds of the trial that took the least, of those that ended well; 0 if none did."""
        return min((one.seconds for one in self.tried if one.nll is not None), default=0.0)


def is_search(work: Workdir) -> bool:
    """Whether families are tried in a workdir."""
    return _file(work).exists()


def write_search(work: Workdir, search: Search) -> None:
    """Writes what was tried so far."""
    content = {
        "config": dict(search.config),
        "tried": [one._asdict() for one in search.tried],
        "seconds": search.seconds,
        "fingerprint": search.fingerprint,
    }
    write_checked(_file(work), content)


def read_search(work: Workdir, config: Mapping[str, Any]) -> Search:
    """Reads what `write_search` wrote; where there is none, nothing was tried.

    Args:
        work: the workdir.
        config: of the default family, as it is now.

    Raises:
        UserError: it is damaged, or of a search with another configuration.
    """
    path = _file(work)
    if not path.exists():
        return Search(config, [])
    found = read_checked(path, _search)
    if changed := differences(found.config, config):
        raise UserError(
            f"{work.path} holds a search with another configuration: {'; '.join(changed)}; set it "
            "as it was, or choose another --workdir"
        )
    return found


def _search(content: Mapping[str, Any]) -> Search:
    """The search that a file tells."""
    found = Search(
        dict(content["config"]),
        [Tried(**one) for one in content["tried"]],
        float(content["seconds"]),
        str(content["fingerprint"]),
    )
    if not all(one.seconds >= 0 and _is_loss(one.nll) for one in found.tried):
        raise ValueError("a trial has no loss or no time")
    return found


def _is_loss(nll: Any) -> bool:
    return nll is None or (isinstance(nll, float) and math.isfinite(nll))


def _file(work: Workdir) -> epath.Path:
    return work.path / "search.json"
