"""What an evaluation of classes refuses, says and shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble.errors import UserError
from ensemble.evaluation.evaluator import Evaluator, Options, PredictedSets
from ensemble.evaluation.strata import OVER
from ensemble.evaluation.thresholds import RULES
from ensemble.evaluation.verdict import verdict
from ensemble.pictures import curves, matrices, member_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject

_MAX_CLASSES = 20
"""Of which a matrix of counts can be read in a cell."""


class ClassEvaluator(Evaluator):
    """Evaluates runs whose targets are classes."""

    rules = RULES

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses rules of abstention that are for numbers.

        Raises:
            UserError: as said.
        """
        for rule in options.abstain or ():
            if rule.tolerance is not None:
                raise UserError(
                    f"abstain={rule} has a tolerance, which is for numbers; classes are right or "
                    f"wrong: leave @{rule.tolerance:g} out"
                )

    def laid_out(self, found: dict[str, Any]) -> dict[str, Any]:
        """The temperature and the sets under `calibrated`; shifts without the plain test split."""
        calibrated = {"temperature": found.pop("factor"), "conformal": found.pop("conformal")[""]}
        shift = {
            kind: {
                **one,
                "interval_over": f"{OVER}; those of one severity hold together",
                "ensemble": {name: each[1:] for name, each in one["ensemble"].items()},
                "mean": {name: each[1:] for name, each in one["mean"].items()},
                "mean_entropy": one["ensemble"]["entropy"][1:],
                "accuracy_cost_interval": [
                    (-high, -low) for low, high in one["change"]["accuracy"]
                ],
            }
            for kind, one in found["shift"].items()
        }
        for one in shift.values():
            del one["ensemble"]["entropy"], one["change"]
        return {**found, "calibrated": calibrated, "shift": shift}

    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Sums an evaluation up, as `verdict.verdict` says."""
        return verdict(evaluation)

    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation."""
        from ensemble.evaluation.page import render  # It imports Matplotlib: a second.

        return render(evaluation, subject, self.evaluated(subject, predicted, Options()).outside)

    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Each score of the ensemble, its interval, and the members' mean."""
        # Imported here, as by `evaluate`: it imports Matplotlib.
        from ensemble.evaluation.page import interval, number, percent, titles_of

        test = evaluation["test"]
        over = "groups" if "over_groups" in test else "examples"

        def row(name: str) -> list[str]:
            show = percent if "accuracy" in name else number
            low_high = interval(test["interval"][name], name)
            return [titles[name], show(test["ensemble"][name]), low_high, show(test["mean"][name])]

        titles = titles_of(evaluation)
        heading = ["test", "ensemble", f"95% over {over}", "mean of members"]
        return heading, [row(name) for name in titles]

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Scores against members, shifts, and the confusion of few classes."""
        drawn = {}
        if len(evaluation["members"]) > 1:
            drawn["sizes"] = member_scores.score_against_size(evaluation["next_member"])
        if evaluation["shift"]:
            drawn["shift"] = curves.shift_curves(evaluation["shift"], evaluation["test"])
        classes = evaluation["classes"]
        if len(classes["names"]) <= _MAX_CLASSES:
            drawn["confusion"] = matrices.confusion_matrix(
                classes["confusion"], classes["names"], range(len(classes["names"]))
            )
        return drawn
