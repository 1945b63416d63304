"""What is found: an answer to one question, by a code and its numbers, without words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ensemble.metrics.analytic_intervals import Interval

Number = float | int | str | Interval | None
Tone = Literal["good", "plain", "warning"]


@dataclass(frozen=True)
class Finding:
    """The answer to a question.

    Attributes:
        code: `question.answer`; once it was released, its meaning never changes.
        about: what it is of: `test`, `targets/2`, `shift/rotation`, `compare/runs/b`.
        numbers: that its words have, by name, and names of what they are of.
        tone: whether it is good news, or a warning.
    """

    code: str
    about: str = "test"
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tone: Tone = "plain"

    def to_json(self, text: str) -> dict[str, Any]:
        """An entry of evaluation.json, with its words."""
        return {**asdict(self), "text": text}
