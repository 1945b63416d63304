"""Numbers as a reader sees them, in rows of a table: of a training and of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ensemble.config.pieces import resolve
from ensemble.errors import aligned
from ensemble.metrics import Estimate

ByName = Mapping[str, Any]
"""Anything by its name."""
DASH = "\N{EN DASH}"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        title: What predicts.
        kind: "baseline", "draw", "member", "sd", "ensemble" or "gain".
        values: Estimates by metric.
    """

    title: str
    kind: str
    values: ByName


def as_data(value: Any) -> Any:
    """Returns named tuples as dicts, also within dicts and lists."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_data(one) for key, one in value.items()}
    return [as_data(one) for one in value] if isinstance(value, list | tuple) else value


def digits(value: float | None, signed: bool = False) -> str:
    """Four significant digits, of which at most four stand behind the point."""
    if value is None or math.isnan(value):
        return DASH
    size = abs(value)
    before = len(f"{size:.0f}") if round(size, 4) >= 1 else 0
    form = ".2g" if 0 < size < 5e-5 else f",.{max(4 - before, 0)}f"
    return _symbols(f"{value + 0.0:{'+' * signed}{form}}")


def percent(value: float, places: int = 1, signed: bool = False) -> str:
    """A share as percent."""
    return DASH if math.isnan(value) else _symbols(f"{value:{'+' * signed}.{places}%}")


def _symbols(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}").replace("inf", "\N{INFINITY}")


def parts(found: Estimate, show: Any) -> tuple[str, str]:
    """Texts of a number and of its interval, which may be unknown."""
    ends = f"{show(found.low)} to {show(found.high)}" if found.low is not None else ""
    return show(found.value), ends


def cells(row: Row, metrics: ByName) -> list[Any]:
    """Texts of the values of a row and of their intervals; differences of shares are in points."""
    is_gain = row.kind == "gain"
    found = []
    for name, one in metrics.items():
        show = partial(percent, places=2) if one.unit == "share" else digits
        value, ends = "", ""
        if name in row.values:
            value, ends = parts(row.values[name], partial(show, signed=is_gain))
        if is_gain:
            value = value.replace("%", " pts")
            ends = ends.replace("%", "")
        found.append((value, ends))
    return found


SLOW = "slow"
MODES = "modes"
DIVERGENT = "divergent"
"""Faults of chains: they mix slowly, stay in modes of their own, or have divergent draws."""

_SECTIONS = {
    "recommendation": "ensemble.recommendation.factorisation:SECTION",
    "sites": "ensemble.numpyro_models.results:SECTION",
    "num_total_samples": "ensemble.random_walk.method:SECTION",
}
"""Sections by the keys of results.json, or of its `posterior`, that bring them; an application's is
imported for its own results alone."""


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts below their titles, the first column flush left."""
    first, *others = aligned([titles, *rows])
    return "\n".join([first, "-" * len(first), *others])


class Section(NamedTuple):
    """A part of some results, and how it is shown.

    Attributes:
        contents: Returns the tables and lines that follow the metrics.
        stands_alone: If True, they replace the metrics.
        findings: Returns signs of a mistake.
        remedy: Called with the results and `SLOW`, `MODES` or `DIVERGENT`; returns what helps
            chains with this fault, as a sentence. Empty: what helps networks.
    """

    contents: Any
    stands_alone: bool = False
    findings: Any = lambda results: []
    remedy: Any = lambda results, fault: ""


def sections_of(results: ByName) -> list[Section]:
    """The sections that results have."""
    keys = {*results, *(results.get("posterior") or ())}
    return [resolve(place) for key, place in _SECTIONS.items() if key in keys]
