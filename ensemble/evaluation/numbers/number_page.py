"""`report.html` of an evaluation of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ensemble.evaluation.evaluator import PredictedSets
from ensemble.evaluation.numbers.number_evaluator import SIZE_TITLES
from ensemble.evaluation.page import drawable_records, fill, percent
from ensemble.evaluation.profile import widest_fan
from ensemble.evaluation.sentences import is_available
from ensemble.likelihood import Column
from ensemble.number_likelihood import NumberLikelihood
from ensemble.pictures import curves, intervals, member_scores, number_plots, uncertainty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject

COLUMNS: Mapping[str, Column] = {
    "rmse": Column("RMSE", has_units=True),
    "mae": Column("MAE", has_units=True),
    "nll": Column("NLL nats"),
    "crps": Column("CRPS", has_units=True),
    "coverage_50": Column("in 50%", 100, 1),
    "coverage_90": Column("in 90%", 100, 1),
    "coverage_95": Column("in 95%", 100, 1),
    "width_90": Column("90% width", has_units=True),
    "interval_score_90": Column("interval score", has_units=True),
    "nll_by_moments": Column("NLL by moments"),
}
"""The scores of the tables."""


def render(evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets) -> str:
    """Returns the page as HTML; whatever comes from data or paths is escaped.

    Args:
        evaluation: the content of evaluation.json.
        subject: of the evaluation.
        predicted: of the members beside the test split.
    """
    return fill(
        "numbers.html",
        evaluation,
        draw(evaluation, subject, predicted),
        CAPTIONS,
        {"percent": percent, "cell": cell, "interval": interval, "short": short},
        titles={name: one.title for name, one in COLUMNS.items()},
        detection=tuple(subject.view.uncertainties()),
    )


def draw(
    evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
) -> dict[str, Figure]:
    """Draws every picture that there are data for, by name."""
    view: Any = subject.view
    known = view.known
    low, middle, high = known.quantiles([0.05, 0.5, 0.95])
    scale = evaluation["calibrated"]["scale"]
    after = view.with_factor(scale["value"]) if is_available(scale) else None
    calibrated = None if after is None else after.pit
    drawn = {
        "predictions": intervals.predictions(middle, low, high, known.y, ""),
        "calibration": intervals.coverage_curve(view.pit, "", calibrated, ~view.is_known),
        "uncertainty": number_plots.errors_against_uncertainty(evaluation["uncertainty"]),
    }
    if len(evaluation["members"]) > 1:
        sizes = evaluation["next_member"]
        drawn["sizes"] = member_scores.score_against_size(sizes, SIZE_TITLES)
    if evaluation["shift"]:
        drawn["shift"] = number_plots.shift_curves(evaluation["shift"])
    drawn |= _draw_unfamiliar(evaluation, subject, predicted)
    if "profile" in predicted and subject.dataset is not None:
        likelihood = cast(NumberLikelihood, subject.likelihood)
        fan = widest_fan(likelihood, subject.dataset, predicted["profile"].arrays)
        if fan is not None:
            ends = fan.low, fan.high
            moved, means = fan.values, fan.member_means
            drawn["fan"] = number_plots.fan(moved, fan.quantiles, means, ends, fan.name)
    if records := drawable_records(subject):
        drawn["training"] = curves.training_curves(records, subject.likelihood.curves())
    return drawn


def _draw_unfamiliar(
    evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
) -> dict[str, Figure]:
    """How far members disagree on the test split, and on what is unlike it."""

    def disagreement(view: Any) -> np.ndarray:
        return np.sqrt(view.disagreement)

    outside = {
        name: disagreement(predicted[name].view(subject.likelihood, None))
        for name in evaluation["out_of_distribution"]
    }
    if not outside:
        return {}
    inside = disagreement(subject.view)
    return {
        "disagreement": number_plots.deviations_in_and_out(inside, outside),
        "roc": uncertainty.roc_curves(inside, outside),
    }


def cell(value: float | None, score: str) -> str:
    """A score as tables show it; a dash where there is none."""
    if value is None or value != value:
        return "-"
    column = COLUMNS[score]
    if column.has_units:
        return f"{value:.4g}"
    return f"{column.factor * value:.{column.digits}f}{'%' if column.factor == 100 else ''}"


def interval(pair: Sequence[float] | None, score: str) -> str:
    """`[low, high]` of a score."""
    if pair is None or (pair[0] <= 0 and math.isinf(pair[1])):
        return "-"
    return f"[{cell(pair[0], score)}, {cell(pair[1], score)}]"


def short(value: float | None) -> str:
    """Four significant digits; a dash where there is no number."""
    return "-" if value is None or value != value else f"{value:.4g}"


CAPTIONS = {
    "predictions": "Medians and 90% intervals against the targets of the test split; those that "
    "miss are red.",
    "calibration": "Left: how many targets central intervals hold, against what they say. Right: "
    "the predictive CDF at the targets (PIT), which is uniform where the distributions are right.",
    "uncertainty": "Examples in ten groups of like uncertainty: their RMSE against the standard "
    "deviation that was predicted.",
    "fan": "Predictions where one input moves and the others stay at their training median: the "
    "input that moves the median most within its training range.",
    "sizes": "What each further member brings: scores of ensembles of 1 to M of these members.",
    "shift": "The test split, shifted more and more.",
    "disagreement": "How far the members disagree on the test split and on inputs unlike it.",
    "roc": "Telling unfamiliar inputs from the test split by the members' disagreement.",
    "training": "How the members learned.",
}
