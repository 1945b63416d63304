"""The contract of evaluators: what an evaluation computes of one kind of targets, and shows.

A likelihood says which evaluator its runs have (`Likelihood.evaluator`). What all have in common,
from the workdir to the two files, is in `assembly.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ensemble import metrics
from ensemble.storage.predictions import MemberPredictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source

PredictedSets = Mapping[str, MemberPredictions]
"""What the members say of everything beside the test split, by the names of `derived.plan`."""


class Options(NamedTuple):
    """What was asked for, beside the data sets.

    Attributes:
        abstain: rules of abstention; None: the evaluator's own.
        nonempty_sets: whether every conformal set is to hold the most probable class at least.
    """

    abstain: Sequence[metrics.Rule] | None = None
    nonempty_sets: bool = False


class Evaluator(Protocol):
    """What an evaluation computes and shows."""

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses what was asked for and is not for such targets.

        Raises:
            UserError: as said.
        """

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """What to predict beside the test split unless a user says it.

        Args:
            source: of the run.
            others: names of prepared data sets of the same shape.
        """

    def predicts_test_again(self, subject: Subject) -> bool:
        """Whether stored predictions of the test split cannot be laid beside those of other inputs,
        which come from other parameters, so that it has to be predicted like these."""

    def compare(self, subject: Subject, other: Subject) -> dict[str, Any]:
        """Compares two workdirs that were tested on the same examples.

        Raises:
            UserError: they were not.
        """

    def sections(
        self, subject: Subject, predicted: PredictedSets, options: Options
    ) -> dict[str, Any]:
        """The evaluator's own sections of evaluation.json; `test` is one."""

    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Sums an evaluation up in sentences, the most important first."""

    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation as HTML."""

    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of the scores, for a terminal or a notebook."""

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The pictures that a notebook shows, drawn from evaluation.json alone."""
