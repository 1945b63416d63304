"""Parts of results that only some runs have: walks, models, recommendations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ensemble.config.pieces import resolve
from ensemble.errors import aligned

Results = Mapping[str, Any]
"""Content of results.json."""

SLOW = "slow"
MODES = "modes"
DIVERGENT = "divergent"
"""Faults of chains: they mix slowly, stay in modes of their own, or have divergent draws."""

_SECTIONS = {
    "recommendation": "ensemble.recommendation.scores:SECTION",
    "sites": "ensemble.numpyro_models.results:SECTION",
    "num_total_samples": "ensemble.random_walk.summary:SECTION",
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


def sections_of(results: Results) -> list[Section]:
    """The sections that results have."""
    keys = {*results, *(results.get("posterior") or ())}
    return [resolve(place) for key, place in _SECTIONS.items() if key in keys]
