"""The file `search.json` of a workdir in which families are tried: what was tried so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from ensemble.config import differences
from ensemble.errors import InputError
from ensemble.storage.json_files import to_json
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
    work.manifest.write(_file(work), to_json(content))


def read_search(work: Workdir, config: Mapping[str, Any]) -> Search:
    """Reads what `write_search` wrote; where there is none, nothing was tried.

    Args:
        work: the workdir.
        config: of the default family, as it is now.

    Raises:
        InputError: it is damaged, or of a search with another configuration.
    """
    if not (content := work.manifest.read(_file(work))):
        return Search(config, [])
    found = Search(**{**content, "tried": [Tried(**one) for one in content["tried"]]})
    if changed := differences(found.config, config):
        raise InputError(
            f"{work.path} holds a search with another configuration: {'; '.join(changed)}; set it "
            "as it was, or choose another --workdir"
        )
    return found


def _file(work: Workdir) -> epath.Path:
    return work.path / "search.json"
