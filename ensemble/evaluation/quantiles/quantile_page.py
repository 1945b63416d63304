"""`report.html` of an evaluation of quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble.evaluation.page import drawable_records, fill, percent
from ensemble.pictures import curves, intervals
from ensemble.scoring.score import percent_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject

_PLAIN = {"pinball": "pinball", "crps": "CRPS", "mae": "MAE", "rmse": "RMSE"}
_OF_BANDS = {"coverage": "in {}%", "width": "{}% width", "interval_score": "{}% interval score"}
_SIMPLE = {"least_squares": "least squares", "constant": "the training targets' quantiles"}


def titles_of(test: Mapping[str, Any]) -> dict[str, str]:
    """The scores of an evaluation by name, and what they are called."""
    found = {name: title for name, title in _PLAIN.items() if name in test["ensemble"]}
    for name in test["ensemble"]:
        kind, _, band = name.rpartition("_")
        if kind in _OF_BANDS:
            found[name] = _OF_BANDS[kind].format(band)
    return found


def render(evaluation: Mapping[str, Any], subject: Subject) -> str:
    """Returns the page as HTML; whatever comes from data or paths is escaped.

    Args:
        evaluation: the content of evaluation.json.
        subject: of the evaluation.
    """
    return fill(
        "quantiles.html",
        evaluation,
        _draw(evaluation, subject),
        CAPTIONS,
        {"percent": percent, "cell": cell, "interval": interval},
        titles=titles_of(evaluation["test"]),
        simple=_SIMPLE,
        detection=tuple(subject.view.uncertainties()),
    )


def table(evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the scores, for a terminal or a notebook."""
    test, simple = evaluation["test"], evaluation["simple"]
    beside = {
        title: simple[name]["ensemble"]
        for name, title in (("least_squares", "least squares"), ("constant", "a constant"))
        if "ensemble" in simple[name]
    }
    rows = [
        [
            title,
            cell(test["ensemble"][name], name),
            interval(test["interval"][name], name),
            cell(test["mean"][name], name),
            *(cell(one[name], name) for one in beside.values()),
        ]
        for name, title in titles_of(test).items()
    ]
    return ["test", "ensemble", "95% interval", "mean of members", *beside], rows


def draw_levels(test: Mapping[str, Any]) -> Figure:
    """Draws how many targets lie below each quantile."""
    levels = test["levels"]
    shares = [one["below"] for one in levels]
    return intervals.quantile_curve(
        [one["level"] for one in levels], shares, test["num_examples"], ""
    )


def _draw(evaluation: Mapping[str, Any], subject: Subject) -> dict[str, Figure]:
    view: Any = subject.view
    drawn = {"calibration": draw_levels(evaluation["test"])}
    for band in view.bands[:1]:
        ends = view.ends(band)
        drawn["predictions"] = intervals.predictions(
            view.median, ends[0], ends[1], view.y, "", percent_of(band)
        )
    if records := drawable_records(subject):
        drawn["training"] = curves.training_curves(records, subject.likelihood.curves())
    return drawn


def cell(value: float | None, score: str) -> str:
    """A score as tables show it; a dash where there is none."""
    if value is None or value != value:
        return "-"
    return percent(value, 1) if score.startswith("coverage") else f"{value:.4g}"


def interval(pair: Sequence[float] | None, score: str) -> str:
    """`[low, high]` of a score; a dash where it cannot be told."""
    if pair is None:
        return "-"
    return f"[{cell(pair[0], score)}, {cell(pair[1], score)}]"


CAPTIONS = {
    "predictions": "Medians and the widest band against the targets of the test split; those that "
    "miss are red.",
    "calibration": "The share of targets below each quantile, against its level.",
    "training": "How the members learned.",
}
