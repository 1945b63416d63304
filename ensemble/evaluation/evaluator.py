"""What evaluators have in common: what an evaluation computes of one kind of targets, and shows.

A likelihood says which evaluator its runs have (`Likelihood.evaluator`). What all have in common,
from the workdir to the two files, is in `assembly.py`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ensemble import metrics
from ensemble.evaluation import derived
from ensemble.evaluation.comparison import compare
from ensemble.evaluation.out_of_distribution import CONSTANT, UNIFORM
from ensemble.evaluation.sections import Evaluated, sections
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


class Evaluator(ABC):
    """What an evaluation computes and shows."""

    rules: ClassVar[Sequence[str]] = ()
    """Of abstention, which are fitted unless others are asked for."""

    @abstractmethod
    def check(self, subject: Subject, options: Options) -> None:
        """Refuses what was asked for and is not for such targets.

        Raises:
            UserError: as said.
        """

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """What to predict beside the test split unless a user says it: shifts of pictures, sets.

        Args:
            source: of the run.
            others: names of prepared data sets of the same shape.
        """
        return [*([derived.SHIFT] if source.has_pictures else []), *others, UNIFORM, CONSTANT]

    def compare(self, subject: Subject, other: Subject) -> dict[str, Any]:
        """Compares two workdirs that were tested on the same examples.

        Raises:
            UserError: they were not.
        """
        return compare(subject, other)

    def sections(
        self, subject: Subject, predicted: PredictedSets, options: Options
    ) -> dict[str, Any]:
        """The evaluator's own sections of evaluation.json; `test` is one."""
        return self.laid_out(sections(self.evaluated(subject, predicted, options)))

    def evaluated(self, subject: Subject, predicted: PredictedSets, options: Options) -> Evaluated:
        """What the sections are made of."""
        own = map(metrics.Rule.parse, self.rules)
        targets = subject.test.targets
        return Evaluated(
            subject.likelihood,
            subject.view,
            subject.calibration_view,
            {
                name: dataclasses.replace(
                    one.view(subject.likelihood, targets if has_targets(name) else None),
                    asked=subject.view.asked,
                )
                for name, one in predicted.items()
                if name != derived.PROFILE
            },
            subject.dataset,
            subject.why_no_data,
            tuple(own if options.abstain is None else options.abstain),
            options.nonempty_sets,
        )

    def laid_out(self, found: dict[str, Any]) -> dict[str, Any]:
        """The sections by the keys that evaluation.json has for such targets."""
        return found

    @abstractmethod
    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Sums an evaluation up in sentences, the most important first."""

    @abstractmethod
    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation as HTML."""

    @abstractmethod
    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of the scores, for a terminal or a notebook."""

    @abstractmethod
    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The pictures that a notebook shows, drawn from evaluation.json alone."""


def has_targets(name: str) -> bool:
    """Whether a set beside the test split is made of that, and so has its targets."""
    return name.startswith(f"{derived.SHIFT}/")
