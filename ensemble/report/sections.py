"""What only some reports have: the sections of the core and of applications."""

from collections.abc import Mapping
from typing import Any

from ensemble import registry
from ensemble.applications import ReportSection


def sections_of(report: Mapping[str, Any]) -> list[ReportSection]:
    """The sections that a report has, an `ensemble.applications.ReportSection` each."""
    known: list[ReportSection] = [registry.load(place) for place in registry.SECTIONS]
    return [section for section in known if section.is_in(report)]
