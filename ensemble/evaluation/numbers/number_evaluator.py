"""What an evaluation of numbers refuses, says and shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.evaluator import Evaluator, Options, PredictedSets
from ensemble.evaluation.numbers.number_verdict import verdict
from ensemble.evaluation.profile import can_profile
from ensemble.evaluation.table_shift import is_table
from ensemble.evaluation.thresholds import NUMBER_RULES
from ensemble.pictures import member_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source

SIZE_TITLES = {"nll": "NLL, nats", "crps": "CRPS"}


class NumberEvaluator(Evaluator):
    """Evaluates runs whose targets are numbers."""

    rules = NUMBER_RULES

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses what is for classes, and a test split of which nothing is known.

        Raises:
            UserError: as said.
        """
        if not subject.view.is_known.any():
            raise UserError(
                f"{subject.work.path} has censored targets alone in its test split, of which "
                "there are no scores but the NLL in report.json"
            )
        if options.nonempty_sets:
            raise UserError(
                "nonempty_sets is for sets of classes, and the targets are numbers: leave it out"
            )

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """Shifts, profiles and made rows of tables; of pictures what all have."""
        if not is_table(source):
            return super().default_sets(source, others)
        own = [derived.PROFILE] if can_profile(source) else []
        return [derived.SHIFT, *own, *others, derived.BOX, derived.OUTSIDE]

    def laid_out(self, found: dict[str, Any]) -> dict[str, Any]:
        """The scale and the intervals under `calibrated`; of shifts the ratio of the RMSE."""
        calibrated = {"scale": found.pop("factor"), "conformal": found.pop("conformal")}
        for one in found["shift"].values():
            one["rmse_ratio_interval"] = one.pop("change")["rmse"]
        return {**found, "calibrated": calibrated}

    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Sums an evaluation up, as `number_verdict.verdict` says."""
        return verdict(evaluation)

    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation."""
        from ensemble.evaluation.numbers.number_page import (
            render,  # It imports Matplotlib: a second.
        )

        return render(evaluation, subject, predicted)

    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Each score of the ensemble, its interval, the members' mean, and simpler predictors."""
        # Imported here, as by `render`: it imports Matplotlib.
        from ensemble.evaluation.numbers.number_page import COLUMNS, cell, interval

        test, simple = evaluation["test"], evaluation["simple"]
        over = "groups" if "over_groups" in test else "examples"
        beside = {
            title: simple[name]["ensemble"]
            for name, title in (("least_squares", "least squares"), ("constant", "a constant"))
            if "ensemble" in simple[name]
        }
        rows = [
            [
                column.title,
                cell(test["ensemble"][name], name),
                interval(test["interval"][name], name),
                cell(test["mean"].get(name), name),
                *(cell(one.get(name), name) for one in beside.values()),
            ]
            for name, column in COLUMNS.items()
            if name in test["ensemble"]
        ]
        return ["test", "ensemble", f"95% over {over}", "mean of members", *beside], rows

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Found coverage, scores against members, and shifts."""
        from ensemble.pictures import number_plots  # As in `table`.

        drawn = {"uncertainty": number_plots.errors_against_uncertainty(evaluation["uncertainty"])}
        if len(evaluation["members"]) > 1:
            sizes = evaluation["next_member"]
            drawn["sizes"] = member_scores.score_against_size(sizes, SIZE_TITLES)
        if evaluation["shift"]:
            drawn["shift"] = number_plots.shift_curves(evaluation["shift"])
        return drawn
