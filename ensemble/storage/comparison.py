"""The file `methods.json` of a workdir in which methods are compared: what was run so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from etils import epath

from ensemble.config import differences
from ensemble.errors import InputError
from ensemble.storage.json_files import to_json
from ensemble.storage.workdir import Workdir


@dataclasses.dataclass
class Comparison:
    """What a workdir says of a comparison of methods.

    Attributes:
        config: that is compared, flat.
        prices: of steps, by the keys on which they depend: fields of `search.cells.Price`.
        length: of one network: `steps` to its best validation score, their CPU `seconds`, and
            `wall`, the seconds that they take; empty as long as it is not known.
        cells: rows of `ensemble.compare_methods`, by the names of their folders.
        seconds: that were spent beside cells.
        fingerprint: of the data; empty as long as no run has ended well.
        result: what follows from all of this, for whoever reads the file.
    """

    config: Mapping[str, Any]
    prices: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    length: dict[str, Any] = dataclasses.field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    fingerprint: str = ""
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def spent(self) -> float:
        """Seconds in all."""
        return self.seconds + sum(one["seconds"] for one in self.cells.values())


def is_comparison(work: Workdir) -> bool:
    """Whether methods are compared in a workdir."""
    return _file(work).exists()


def write_comparison(work: Workdir, found: Comparison) -> None:
    """Writes what was run so far."""
    work.manifest.write(_file(work), to_json(dataclasses.asdict(found)))


def remove_comparison(work: Workdir) -> None:
    """Forgets what was run so far."""
    work.manifest.remove(_file(work))


def read_comparison(work: Workdir, config: Mapping[str, Any]) -> Comparison:
    """Reads what `write_comparison` wrote; where there is none, nothing was run.

    Args:
        work: the workdir.
        config: that is compared now.

    Raises:
        InputError: it is damaged, or of another configuration.
    """
    found = Comparison(**(work.manifest.read(_file(work)) or {"config": config}))
    if changed := differences(found.config, config):
        raise InputError(
            f"{work.path} holds a comparison with another configuration: {'; '.join(changed)}; "
            "set it as it was, or choose another --workdir"
        )
    return found


def _file(work: Workdir) -> epath.Path:
    return work.path / "methods.json"
