"""What an evaluation computes of numbers, and shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.evaluator import Options, PredictedSets
from ensemble.evaluation.next_member import SMALL_GAIN, Subset, sizes_section
from ensemble.evaluation.numbers import number_scores, unfamiliar
from ensemble.evaluation.numbers.calibrated_numbers import score_calibrated
from ensemble.evaluation.numbers.known_rows import (
    is_known,
    known_rows,
    member_log_probs,
    nll_terms,
)
from ensemble.evaluation.numbers.number_comparison import compare
from ensemble.evaluation.numbers.number_verdict import verdict
from ensemble.evaluation.numbers.widths import RULES, score_abstention
from ensemble.evaluation.out_of_distribution import CONSTANT, UNIFORM
from ensemble.evaluation.profile import can_profile
from ensemble.evaluation.strata import calibration_groups, groups_of, in_groups, strata_of
from ensemble.evaluation.table_shift import is_table
from ensemble.metrics import regression
from ensemble.number_likelihood import NumberLikelihood
from ensemble.pictures import member_scores
from ensemble.storage.predictions import StoredPredictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source, Strata

SIZE_TITLES = {"nll": "NLL, nats", "crps": "CRPS"}


class NumberEvaluator:
    """Evaluates runs whose targets are numbers."""

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses what is for classes, and a test split of which nothing is known.

        Raises:
            UserError: as said.
        """
        if not is_known(subject.test.targets).any():
            raise UserError(
                f"{subject.work.path} has censored targets alone in its test split, of which "
                "there are no scores but the NLL in report.json"
            )
        if options.nonempty_sets:
            raise UserError(
                "nonempty_sets is for sets of classes, and the targets are numbers: leave it out"
            )

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """Shifts, profiles and made rows of tables; of pictures what classes have."""
        if is_table(source):
            own = [derived.PROFILE] if can_profile(source) else []
            return [derived.SHIFT, *own, *others, derived.BOX, derived.OUTSIDE]
        return [*([derived.SHIFT] if source.has_pictures else []), *others, UNIFORM, CONSTANT]

    def predicts_test_again(self, subject: Subject) -> bool:
        """Of chains: their sums are over all draws, other inputs are predicted by those kept."""
        return self._likelihood(subject).keeps_sums(subject.test.arrays)

    def compare(self, subject: Subject, other: Subject) -> dict[str, Any]:
        """Compares two workdirs, as `number_comparison.compare` says."""
        return compare(subject, other)

    def sections(
        self, subject: Subject, predicted: PredictedSets, options: Options
    ) -> dict[str, Any]:
        """Scores, calibration, abstention, members, shift and other data."""
        likelihood, test, source = self._likelihood(subject), subject.test, subject.dataset
        beside = test
        if derived.TEST_AGAIN in predicted:
            again = predicted[derived.TEST_AGAIN].arrays
            beside = StoredPredictions(again, test.targets, test.members)
        calibration = subject.calibration
        known, strata = known_rows(likelihood, test), strata_of(source)
        return {
            "test": _over_groups(likelihood, test, strata),
            "simple": number_scores.score_simple(likelihood, test, source, subject.why_no_data),
            "calibrated": score_calibrated(
                likelihood, test, calibration, strata, calibration_groups(source)
            ),
            "uncertainty": number_scores.score_uncertainty(likelihood, known),
            "abstention": score_abstention(likelihood, test, calibration, _rules(options)),
            "next_member": score_sizes(likelihood, test),
            "beyond": unfamiliar.score_beyond(likelihood, test, source),
            "shift": unfamiliar.score_shifts(likelihood, beside, predicted, groups_of(strata)),
            "out_of_distribution": unfamiliar.score_detections(likelihood, beside, predicted),
            "least_certain": number_scores.least_certain(likelihood, test, source),
        }

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

    def _likelihood(self, subject: Subject) -> NumberLikelihood:
        return cast(NumberLikelihood, subject.likelihood)


def _over_groups(
    likelihood: NumberLikelihood, test: StoredPredictions, strata: Strata | None
) -> dict[str, Any]:
    """Scores of the test split, with intervals over groups where rows are split by these.

    Of censored targets only the NLL's is, and those of scores of known targets.
    """
    section, known = number_scores.score_predictions(likelihood, test), is_known(test.targets)
    if strata is None:
        return section
    some = known_rows(likelihood, test)
    distribution = likelihood.distribution(some.arrays)
    terms = {**distribution.terms(some.targets), **number_scores.variances(distribution)}
    if known.all():
        return in_groups(section, regression.resampled_means(terms), strata)
    nll = {"nll": nll_terms(likelihood, test)}
    section = in_groups(section, regression.resampled_means(nll), strata)
    terms = {name: one for name, one in terms.items() if not name.startswith(("nll", "coverage"))}
    among = strata._replace(values=strata.values[known])
    return in_groups(section, regression.resampled_means(terms), among)


def score_sizes(likelihood: NumberLikelihood, test: StoredPredictions) -> dict[str, Any]:
    """Scores ensembles of 1..M members, as `next_member.score_sizes` does for classes."""
    known = known_rows(likelihood, test)
    log_probs = member_log_probs(likelihood, test)

    def distribution(subset: Subset) -> Any:
        chosen = list(subset)
        return likelihood.distribution({name: one[chosen] for name, one in known.arrays.items()})

    def scores(subset: Subset) -> dict[str, float]:
        some = distribution(subset)
        return regression.means(
            {
                "nll": -log_density(subset),
                "rmse": (some.moments()[0] - known.targets) ** 2,
                "crps": some.crps(known.targets),
            }
        )

    def log_density(subset: Subset) -> np.ndarray:
        return regression.mixture_log_density(log_probs[list(subset)])

    sizes = len(test.members), len(test.targets)
    return sizes_section(*sizes, scores, log_density, SMALL_GAIN)


def _rules(options: Options) -> list[metrics.Rule]:
    """What is wanted of abstention."""
    own = map(metrics.Rule.parse, RULES)
    return list(own if options.abstain is None else options.abstain)
