"""What an evaluation computes of quantiles, and shows: no density, and so no NLL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.comparison import OVER, check_comparable
from ensemble.evaluation.evaluator import Options, PredictedSets
from ensemble.evaluation.numbers.number_comparison import paired_intervals
from ensemble.evaluation.out_of_distribution import CONSTANT, UNIFORM
from ensemble.evaluation.quantiles import quantile_scores, quantile_verdict
from ensemble.evaluation.strata import in_groups, strata_of
from ensemble.evaluation.table_shift import is_table
from ensemble.likelihoods.quantiles import Quantiles
from ensemble.metrics import regression

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source


class QuantileEvaluator:
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
        """Shifts and made rows of tables; of pictures what classes have."""
        if is_table(source):
            return [derived.SHIFT, *others, derived.BOX, derived.OUTSIDE]
        return [*([derived.SHIFT] if source.has_pictures else []), *others, UNIFORM, CONSTANT]

    def predicts_test_again(self, subject: Subject) -> bool:
        """Never: there are no posteriors of quantiles."""
        return False

    def compare(self, subject: Subject, other: Subject) -> dict[str, Any]:
        """Compares two workdirs of the same levels, in pairs.

        Raises:
            UserError: they have other levels, or were not tested on the same examples.
        """
        check_comparable(subject, other)
        ours, theirs = _likelihood(subject), _likelihood(other)
        if ours.levels != theirs.levels:
            raise UserError(
                f"--compare={other.work.path} has learned the levels {theirs.levels}, "
                f"{subject.work.path} {ours.levels}; compare runs of the same levels"
            )
        targets = np.asarray(subject.test.targets, np.float64)
        first, second = (
            quantile_scores.terms_of(ours, ours.averaged(one.test.arrays), targets)
            for one in (subject, other)
        )
        before, after = map(regression.means, (first, second))
        return {
            "workdir": str(other.work.path),
            "method": other.config["method"],
            "likelihood": other.likelihood.name,
            "num_members": len(other.test.members),
            "ensemble": after,
            "difference": {name: after[name] - before[name] for name in before},
            "interval": paired_intervals(first, second),
            "interval_over": OVER,
        }

    def sections(
        self, subject: Subject, predicted: PredictedSets, options: Options
    ) -> dict[str, Any]:
        """Scores, conformalised bands, shift and other data."""
        likelihood, test, source = _likelihood(subject), subject.test, subject.dataset
        strata, targets = strata_of(source), test.targets
        section = quantile_scores.score_predictions(likelihood, test, strata)
        statistic = regression.resampled_means(
            quantile_scores.ensemble_terms(likelihood, test.arrays, targets)
        )
        return {
            "test": in_groups(section, statistic, strata),
            "simple": quantile_scores.score_simple(likelihood, test, source, subject.why_no_data),
            "conformal": quantile_scores.score_conformal(
                likelihood, test, subject.calibration, strata
            ),
            "uncertainty": quantile_scores.score_uncertainty(likelihood, test),
            "shift": quantile_scores.score_shifts(likelihood, test, predicted),
            "out_of_distribution": quantile_scores.score_detections(likelihood, test, predicted),
            "least_certain": quantile_scores.least_certain(likelihood, test),
        }

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


def _likelihood(subject: Subject) -> Quantiles:
    return cast(Quantiles, subject.likelihood)
