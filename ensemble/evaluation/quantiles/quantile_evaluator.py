"""What an evaluation of quantiles refuses, says and shows: no density, and so no NLL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.evaluator import Evaluator, Options, PredictedSets
from ensemble.evaluation.quantiles import quantile_verdict
from ensemble.evaluation.table_shift import is_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source


class QuantileEvaluator(Evaluator):
    """Evaluates runs that have learned quantiles."""

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses what needs classes, or a density.

        Raises:
            UserError: as said.
        """
        if options.nonempty_sets:
            raise UserError(
                "nonempty_sets is for sets of classes, and the targets are numbers: leave it out"
            )
        if options.abstain is not None:
            raise UserError(
                f"{subject.work.path} has learned quantiles, which have no threshold of "
                "abstention: leave --abstain out"
            )

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """Shifts and made rows of tables; of pictures what all have."""
        if not is_table(source):
            return super().default_sets(source, others)
        return [derived.SHIFT, *others, derived.BOX, derived.OUTSIDE]

    def laid_out(self, found: dict[str, Any]) -> dict[str, Any]:
        """Without what only shifts of others have."""
        for one in found["shift"].values():
            del one["change"], one["interval_over"]
        del found["next_member"]
        return found

    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Sums an evaluation up, as `quantile_verdict.verdict` says."""
        return quantile_verdict.verdict(evaluation)

    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation."""
        from ensemble.evaluation.quantiles import quantile_page  # It imports Matplotlib: a second.

        return quantile_page.render(evaluation, subject)

    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Each score of the ensemble, its interval, the members' mean, and simpler predictors."""
        from ensemble.evaluation.quantiles import quantile_page  # As in `render`.

        return quantile_page.table(evaluation)

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """How many targets lie below each quantile."""
        from ensemble.evaluation.quantiles import quantile_page  # As in `render`.

        return {"calibration": quantile_page.draw_levels(evaluation["test"])}
