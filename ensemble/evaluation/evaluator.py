"""What an evaluation asks and draws of one kind of targets.

A likelihood says which evaluator its runs have (`Likelihood.evaluator`). What all have in common,
from the workdir to the two files, is in `assembly.py`; the page is in `page.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ensemble.scoring.finding import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.sections import Evaluated


class Evaluator(ABC):
    """The findings and pictures of one kind of targets.

    Attributes:
        captions: of the pictures, by name.
        under_shift: the scores that a table of shifted inputs shows.
    """

    captions: ClassVar[Mapping[str, str]]
    under_shift: ClassVar[tuple[str, ...]]

    @abstractmethod
    def findings(self, evaluation: Mapping[str, Any]) -> list[Finding]:
        """The answers to all questions that are asked of such targets, the most important first.

        Args:
            evaluation: the content of evaluation.json so far.
        """

    @abstractmethod
    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The pictures that a notebook shows, drawn from evaluation.json alone."""

    @abstractmethod
    def draw(self, evaluation: Mapping[str, Any], one: Evaluated) -> dict[str, Figure]:
        """Draws every picture of the page that there are data for, by name."""
