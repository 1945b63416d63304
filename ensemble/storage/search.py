"""Files of a workdir in which families or methods are tried: what was tried so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ensemble.config import differences
from ensemble.errors import InputError
from ensemble.storage.workdir import Workdir


@dataclasses.dataclass
class _Tries:
    """What a workdir says of tries.

    Attributes:
        file: Name of the file.
        config: Configuration of the default, flat.
        seconds: Seconds of all that is in no entry.
        fingerprint: Fingerprint of the data; empty as long as no run has ended well.
    """

    file: ClassVar[str]
    config: Mapping[str, Any]
    seconds: float = 0.0
    fingerprint: str = ""

    @classmethod
    def is_in(cls, work: Workdir) -> bool:
        """Whether a workdir has such tries."""
        return (work.path / cls.file).exists()

    @classmethod
    def read(cls, work: Workdir, config: Mapping[str, Any]) -> Self:
        """Reads what `write` wrote; where there is none, nothing was tried.

        Args:
            work: The workdir.
            config: Configuration of the default, as it is now.

        Raises:
            InputError: It is damaged, or of another configuration.
        """
        found = cls(**(work.manifest.read(work.path / cls.file) or {"config": config}))
        if changed := differences(found.config, config):
            raise InputError(
                f"{work.path} holds tries with another configuration: {'; '.join(changed)}; set it "
                "as it was, or choose another --workdir"
            )
        return found

    def write(self, work: Workdir) -> None:
        """Writes what was tried so far."""
        work.manifest.write(work.path / self.file, dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Tried:
    """A trial that has ended.

    Attributes:
        family: Its number.
        settings: Keys of the family that differ from the default's.
        num_epochs: Most epochs that it trained for.
        nll: NLL of rows held out, nats; None: it failed.
        seconds: Seconds that it took, over all processes.
        failure: Why it failed; empty if it did not.
    """

    family: int
    settings: Mapping[str, Any]
    num_epochs: int
    nll: float | None
    seconds: float
    failure: str = ""


@dataclasses.dataclass
class Search(_Tries):
    """Trials of families that have ended, in their order; `seconds` are of one under way."""

    file = "search.json"
    tried: list[Tried] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.tried = [Tried(**one) if isinstance(one, dict) else one for one in self.tried]

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


@dataclasses.dataclass
class Comparison(_Tries):
    """Comparison of methods; `seconds` were spent outside of cells.

    Attributes:
        prices: Prices of steps, by the keys on which they depend: fields of `cells.Price`.
        length: Length of one network: `steps` to its best validation score, their CPU `seconds`,
            and `wall`, the seconds that they take; empty as long as it is not known.
        cells: Rows of `ensemble.compare_methods`, by the names of their folders.
        result: What follows from all of this, for whoever reads the file.
    """

    file = "methods.json"
    prices: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    length: dict[str, Any] = dataclasses.field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def spent(self) -> float:
        """Seconds in all."""
        return self.seconds + sum(one["seconds"] for one in self.cells.values())
