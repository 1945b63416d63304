"""Applications join as a whole, each with a folder: tenants, commands, names and reports.

The core imports no application by itself. Where the folder of one is removed, the rest works as
before, without a trace of it.
"""

import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

ROOMS = ("recommendation", "numpyro_models", "walks")
"""The folders of this package that may be there."""

Report = Mapping[str, Any]
"""The content of report.json."""


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        does: what, in half a sentence that begins with a verb.
        module: whose `run(program)` runs it; empty: the one of `ensemble.commands` by its name.
    """

    does: str
    module: str = ""


@dataclasses.dataclass(frozen=True)
class Application:
    """An application, as the `join` of its folder describes it: data only.

    Attributes:
        tenants: entries of `ensemble.entries` by name, by kind.
        public: names of the package `ensemble`, and the modules that define them.
        modules: the same for modules that users import from `ensemble`.
        commands: of `ensemble COMMAND`, by name.
        section: a `ReportSection` of the reports of its runs, as `"module:NAME"`; empty: none.
    """

    tenants: Mapping[str, Mapping[str, Any]]
    public: Mapping[str, str] = dataclasses.field(default_factory=dict)
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    commands: Mapping[str, Command] = dataclasses.field(default_factory=dict)
    section: str = ""


SLOW, MODES, DIVERGENT = "slow", "modes", "divergent"
"""Faults of chains: they mix slowly, stay in modes of their own, or have divergent draws."""


@dataclasses.dataclass(frozen=True)
class ReportSection:
    """A part that only some reports have, and how it is shown.

    Attributes:
        key: of report.json, with dots; a report that has it has this section.
        contents: returns the tables and lines that follow the scores.
        stands_alone: whether they are shown in place of scores.
        sentence: returns the result in a line; empty where the scores say it.
        findings: returns signs of a mistake, a line each.
        figures: returns pictures by name.
        remedy: called with the report and `SLOW`, `MODES` or `DIVERGENT`; returns what helps chains
            with this fault, in half a sentence. Empty: what helps networks.
    """

    key: str
    contents: Callable[[Report], list[Any]]
    stands_alone: bool = False
    sentence: Callable[[Report], str] = lambda report: ""
    findings: Callable[[Report], list[str]] = lambda report: []
    figures: Callable[[Report], dict[str, Any]] = lambda report: {}
    remedy: Callable[[Report, str], str] = lambda report, fault: ""

    def is_in(self, report: Report) -> bool:
        """Whether a report has this section."""
        found: Any = report
        for name in self.key.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return False
            found = found[name]
        return True


@functools.cache
def applications() -> tuple[Application, ...]:
    """The applications whose folders are there."""
    here = pathlib.Path(__file__).parent
    there = [room for room in ROOMS if (here / room / "__init__.py").is_file()]
    return tuple(importlib.import_module(f"ensemble.{room}").join() for room in there)
