"""What every writer promises: it takes metrics, is closed, and disturbs no run."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble import registry
from ensemble.config_rules import validate
from ensemble.errors import UserError
from ensemble.testing.promises import Promise, demand, keep_all, promise

ROWS: tuple[tuple[int, Mapping[str, float]], ...] = (
    (10, {"epoch": 1.0, "train/member_00/loss": 0.7, "train/member_01/loss": 0.8}),
    (10, {"validation/ensemble/nll": 0.6}),
    (20, {"epoch": 2.0, "train/member_00/loss": math.nan, "train/member_01/loss": 0.4}),
    (20, {"validation/ensemble/nll": math.inf, "validation/ensemble/accuracy": 0.9}),
    (30, {"epoch": 3.0, "train/member_01/loss": 0.3}),
)
"""Steps and metrics as a run has them: several a step, names that come and go, a failed member."""
_OF_A_RUN = {"config.json": '{"seed": 0}\n', "metrics.jsonl": '{"step": 10}\n'}


@dataclasses.dataclass(frozen=True)
class WriterCase:
    """A writer, and the settings of a run that has it.

    Attributes:
        name: of the writer.
        settings: keys of the configuration, by name.
    """

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "writer"

    def create(self, workdir: str | None, step: int = 0) -> Any:
        """Makes it, as a run does that goes on from a step."""
        config = validate({"num_epochs": 3, **self.settings, "writers": self.name})
        tenants = registry.WRITERS
        factory = registry.load_code(tenants, self.name, tenants[self.name].factory)
        writer = factory(config, workdir, step)
        demand(callable(writer), f"the factory made a {type(writer).__name__}, and no function")
        return writer

    def write(self, workdir: str | None, step: int = 0) -> None:
        """Hands it all rows after a step, and closes it."""
        writer = self.create(workdir, step)
        try:
            for at, metrics in ROWS:
                if at > step:
                    writer(at, dict(metrics))
        finally:
            _close(writer)


def check_writer(name: str, **settings: Any) -> None:
    """Checks what every writer promises, in a temporary workdir.

    Args:
        name: of a writer that is registered or installed. What it sends to a service is sent.
        **settings: keys of the configuration that it reads.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such writer.
    """
    registry.find("writer", name)
    keep_all(PROMISES, WriterCase(name, settings))


def _close(writer: Any) -> None:
    close = getattr(writer, "close", None)
    if callable(close):
        close()


_FOUND: list[Promise] = []


@promise(_FOUND, "names and values that it does not expect")
def it_takes_the_metrics_of_a_run(case: WriterCase) -> None:
    """It takes several rows of a step, names that come and go, NaN and infinity."""
    with tempfile.TemporaryDirectory() as workdir:
        case.write(workdir)


@promise(_FOUND, "close, which must not need what the first row makes")
def it_is_closed_before_anything_came(case: WriterCase) -> None:
    """It can be closed before anything was written, as where a run fails at once."""
    with tempfile.TemporaryDirectory() as workdir:
        _close(case.create(workdir))


@promise(_FOUND, "the factory: step is where the run goes on, and its files are there already")
def a_run_that_goes_on_opens_it_again(case: WriterCase) -> None:
    """A run that goes on opens it again, and later steps come once more: it does not fail then."""
    with tempfile.TemporaryDirectory() as workdir:
        for step in (0, 10, 20):
            case.write(workdir, step)


@promise(_FOUND, "workdir, which is None where a run keeps nothing")
def without_a_workdir_it_works_or_says_so(case: WriterCase) -> None:
    """Without a workdir it works, or its factory raises a UserError of one line."""
    try:
        case.write(None)
    except UserError as error:
        demand("\n" not in str(error), f"the line is {str(error)!r}")


@promise(_FOUND, "the names of its files in the workdir")
def files_of_the_run_stay_as_they_are(case: WriterCase) -> None:
    """The files that the run itself has in the workdir stay as they are."""
    with tempfile.TemporaryDirectory() as workdir:
        for name, text in _OF_A_RUN.items():
            Path(workdir, name).write_text(text)
        case.write(workdir, 0)
        for name, text in _OF_A_RUN.items():
            place = Path(workdir, name)
            demand(place.is_file() and place.read_text() == text, f"{name} is another one now")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of writers, in order."""
