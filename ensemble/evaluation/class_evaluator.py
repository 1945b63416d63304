"""What an evaluation computes of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.class_predictions import ClassPredictions, LabelledPredictions
from ensemble.evaluation.comparison import compare
from ensemble.evaluation.evaluator import Options, PredictedSets
from ensemble.evaluation.next_member import score_sizes
from ensemble.evaluation.out_of_distribution import (
    CONSTANT,
    UNIFORM,
    score_detection,
    uncertainty_scores,
)
from ensemble.evaluation.scoring import (
    resampled_scores,
    score_calibrated,
    score_classes,
    score_predictions,
)
from ensemble.evaluation.shift import SHIFTS
from ensemble.evaluation.strata import OVER, calibration_groups, in_groups, strata_of
from ensemble.evaluation.table_shift import TABLE_SHIFTS
from ensemble.evaluation.thresholds import RULES, score_abstention
from ensemble.evaluation.verdict import verdict
from ensemble.pictures import curves, matrices, member_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source

_MAX_CLASSES = 20
"""Of which a matrix of counts can be read in a cell."""


class ClassEvaluator:
    """Evaluates runs whose targets are classes."""

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses rules of abstention that are for numbers.

        Raises:
            UserError: as said.
        """
        for rule in _rules(options):
            if rule.tolerance is not None:
                raise UserError(
                    f"abstain={rule} has a tolerance, which is for numbers; classes are right or "
                    f"wrong: leave @{rule.tolerance:g} out"
                )

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """Shifts of images, the other sets, noise and constants."""
        shifts = [derived.SHIFT] if source.has_pictures else []
        return [*shifts, *others, UNIFORM, CONSTANT]

    def predicts_test_again(self, subject: Subject) -> bool:
        """Never: a chain's predictions are its mean probabilities, wherever they come from."""
        return False

    def compare(self, subject: Subject, other: Subject) -> dict[str, Any]:
        """Compares two workdirs, as `comparison.compare` says."""
        return compare(subject, other)

    def sections(
        self, subject: Subject, predicted: PredictedSets, options: Options
    ) -> dict[str, Any]:
        """Scores, classes, calibration, abstention, members, shift and other data."""
        test = LabelledPredictions.of(subject.test)
        held_out = subject.calibration
        calibration = None if held_out is None else LabelledPredictions.of(held_out)
        outside, strata = _of_classes(predicted), strata_of(subject.dataset)
        section = score_predictions(test)
        return {
            "test": in_groups(section, resampled_scores(test), strata),
            "classes": score_classes(test, subject.description["class_names"]),
            "calibrated": score_calibrated(
                test,
                calibration,
                options.nonempty_sets,
                strata,
                calibration_groups(subject.dataset),
            ),
            "abstention": score_abstention(test, calibration, _rules(options)),
            "next_member": score_sizes(test),
            "shift": score_shifts(test, outside),
            "out_of_distribution": _score_detections(test, outside),
        }

    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Sums an evaluation up, as `verdict.verdict` says."""
        return verdict(evaluation)

    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation."""
        from ensemble.evaluation.page import render  # It imports Matplotlib: a second.

        log_probs = {name: one.log_probs for name, one in _of_classes(predicted).items()}
        return render(evaluation, subject, log_probs)

    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Each score of the ensemble, its interval, and the members' mean."""
        # Imported here, as by `evaluate`: it imports Matplotlib.
        from ensemble.evaluation.page import TITLES, interval, number, percent

        test = evaluation["test"]
        over = "groups" if "over_groups" in test else "examples"

        def row(name: str) -> list[str]:
            show = percent if "accuracy" in name else number
            low_high = interval(test["interval"][name], name)
            return [TITLES[name], show(test["ensemble"][name]), low_high, show(test["mean"][name])]

        names = [name for name in TITLES if name in test["ensemble"]]
        return ["test", "ensemble", f"95% over {over}", "mean of members"], [row(n) for n in names]

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


def _of_classes(predicted: PredictedSets) -> dict[str, ClassPredictions]:
    """Predictions of classes by set, but for profiles, of which numbers are drawn."""
    return {
        name: ClassPredictions.of(one.arrays)
        for name, one in predicted.items()
        if name != derived.PROFILE
    }


def _rules(options: Options) -> list[metrics.Rule]:
    """What is wanted of abstention."""
    own = map(metrics.Rule.parse, RULES)
    return list(own if options.abstain is None else options.abstain)


def score_shifts(
    test: LabelledPredictions, outside: Mapping[str, ClassPredictions]
) -> dict[str, Any]:
    """Scores by kind of shift: [5] for the ensemble and for its mean member, by score.

    Args:
        test: predictions of the test split.
        outside: predictions of the same examples, shifted, by `shift/KIND/SEVERITY`; may have more.

    Returns:
        By kind `unit`, `amounts`, `ensemble` and `mean` scores, `mean_entropy`, nats, and
        `accuracy_cost_interval`, of the accuracy that the shift costs: paired, and at each severity
        all kinds' hold together in 95% of cases (Bonferroni).
    """
    sections = {}
    kinds = {
        kind: (shift, [f"{derived.SHIFT}/{kind}/{severity}" for severity in derived.SEVERITIES])
        for kind, shift in {**SHIFTS, **TABLE_SHIFTS}.items()
    }
    kinds = {kind: one for kind, one in kinds.items() if set(one[1]) <= outside.keys()}
    hits = _hits(test, test.targets)
    for kind, (shift, names) in kinds.items():
        summaries = [
            metrics.summarise(outside[name].log_probs, test.targets, outside[name].entropies)
            for name in names
        ]
        sections[kind] = {
            "interval_over": f"{OVER}; those of one severity hold together",
            "unit": shift.unit,
            "amounts": list(shift.amounts),
            "ensemble": {
                name: [one["ensemble"][name] for one in summaries] for name in metrics.SCORES
            },
            "mean": {
                name: [float(np.mean(one["members"][name])) for one in summaries]
                for name in metrics.SCORES
            },
            "mean_entropy": [one["diversity"]["total"] for one in summaries],
            "accuracy_cost_interval": [
                cost_interval(hits, _hits(outside[name], test.targets), len(kinds))
                for name in names
            ],
        }
    return sections


def cost_interval(hits: NDArray, shifted: NDArray, num_kinds: int) -> tuple[float, float]:
    """Of the accuracy that a shift costs; those of all kinds hold together in 95% of cases.

    Args:
        hits: whether each test example is predicted rightly, [N].
        shifted: the same after the shift.
        num_kinds: how many kinds of shift there are.
    """
    return metrics.bounded_interval(hits - shifted, -1.0, 1.0, level=1 - 0.05 / num_kinds)


def _hits(predictions: ClassPredictions | LabelledPredictions, labels: NDArray) -> NDArray:
    """1 where the ensemble's most probable class is the label, else 0, [N]."""
    mean = metrics.ensemble_log_probs(predictions.log_probs)
    return (mean.argmax(axis=-1) == labels).astype(np.float64)


def _score_detections(
    test: LabelledPredictions, outside: Mapping[str, ClassPredictions]
) -> dict[str, Any]:
    """Detection scores of every set beside the test split and its shifts."""
    inside = uncertainty_scores(ClassPredictions(test.log_probs, test.entropies))
    return {
        name: score_detection(inside, one)
        for name, one in outside.items()
        if not name.startswith(f"{derived.SHIFT}/")
    }
