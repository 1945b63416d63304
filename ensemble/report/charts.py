"""Charts of an evaluation, of a training and of chains: from numbers to marks.

A page draws them as SVG and `plots` as PNG files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics import functions, interval, ranking
from ensemble.report.svg import Axis, Chart, span

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

_NUM_COLOURS = 8
_MAX_POINTS, _MAX_CURVES = 1000, 2000


def _add_average(chart: Chart, e: Evaluation, xs: Any, ys: Any) -> None:
    """Adds the line of the average member, if there are several."""
    if e.test.num_members > 1:
        chart.add("line", "member", xs, ys, f"average {e.noun}")


def calibration(e: Evaluation) -> Chart:
    """Accuracy against confidence in ten bins; of numbers, targets below quantiles against levels.

    Args:
        e: Evaluation of one target.
    """
    labels = ("confidence", "accuracy") if e.is_classes else ("level", "targets below the quantile")
    x, y = (Axis(label, (0, 1), is_share=True) for label in labels)
    chart = Chart("Calibration", x, y)
    chart.add("line", "ideal", [0, 1], [0, 1], "calibrated")
    if e.is_classes:
        _add_average(chart, e, *_bins(e.test.members, e.y)[:2])
        found = _bins([e.test], e.y)
    else:
        levels = np.linspace(0.05, 0.95, 19)
        if e.test.kind == "quantiles":
            levels = np.asarray(e.test.levels)
            below = e.y[:, None] <= e.test.at_levels
        else:
            below = e.test.pit(e.y)[:, None] <= levels
        each = [interval(one, e.groups, bounds=(0, 1)) for one in below.T]
        found = np.column_stack([levels, np.array(each, float)]).T
    xs, share, low, high = found
    chart.curve(xs, share)
    bars = np.stack([low, high, np.full(len(xs), np.nan)], axis=1)
    chart.add("line", "whisker", np.repeat(xs, 3), bars.ravel())
    return chart


def _bins(of: Sequence[Any], y: NDArray) -> NDArray:
    """[4, K]: confidence, accuracy and its interval in the filled bins, over all predictives."""
    confidence = np.concatenate([p.confidence for p in of])
    hit = np.concatenate([functions.accuracy(p, y) for p in of])
    places = np.ceil(confidence * 10)
    found = []
    for place in np.unique(places):
        some = places == place
        found.append((confidence[some].mean(), *interval(hit[some], bounds=(0, 1))))
    return np.array(found, float).T


def abstention(e: Evaluation) -> Chart:
    """Accuracy, or error, of answered examples against their share."""

    def curve(p: Any) -> NDArray:
        right = functions.accuracy(p, e.y) if e.is_classes else np.abs(p.median - e.y)
        found = np.array(ranking.risk_coverage(-p.doubt(), right))
        return found[:, np.linspace(found.shape[1] // 20, found.shape[1] - 1, 120).astype(int)]

    what = "accuracy" if e.is_classes else "mean absolute error"
    x = Axis("share of examples answered, most certain first", (0, 1), is_share=True)
    chart = Chart("Abstention", x, Axis(f"{what} of answers", is_share=e.is_classes))
    _add_average(chart, e, *np.mean([curve(one) for one in e.test.members], axis=0))
    xs, ys = curve(e.test)
    chart.add("line", "ours", xs, ys, "ensemble")
    return chart


def sizes(e: Evaluation) -> list[Chart]:
    """Headline and proper score against the number of members; dots are single members."""
    charts: list[Chart] = []
    if e.test.num_members == 1:
        return charts
    xs = list(e.sizes)
    ticks = [(x, str(x)) for x in xs if x in (1, 2, 4, 8, 16, 32, max(xs))]
    for name, one in e.main.items():
        members = e.table.members[name]
        title = f"{one.title} by number of {e.noun}s"
        x = Axis(f"number of {e.noun}s", ticks=ticks)
        chart = Chart(title, x, Axis(one.title, is_share=one.unit == "share"))
        chart.add("dots", "single", np.ones(len(members)), members, f"single {e.noun}s")
        chart.curve(xs, [each[name] for each in e.sizes.values()])
        charts.append(chart)
    return charts


def shifts(e: Evaluation) -> list[Chart]:
    """Scores against severity, a line for each kind of shift; 0 is the test split."""
    charts: dict[str, Chart] = {}
    for k, (kind, one) in enumerate(e.shifts.items()):
        for name, along in one["metrics"].items():
            metric = e.metrics[name]
            y = Axis(metric.title, is_share=metric.unit == "share")
            chart = charts.setdefault(
                name, Chart(f"{metric.title} under shift", Axis("severity"), y)
            )
            chart.curve(range(len(along)), [at.value for at in along], f"chain-{k}", kind)
    return [*charts.values()]


def learning_curves(records: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Chart]:
    """Scores of members and ensemble as training went on.

    Args:
        records: lines of metrics.jsonl, with keys such as `epoch`, `train/member_00/loss` and
            `validation/ensemble/nll`; any may be missing, NaN or None.
        names: titles by name of the score, such as "loss" or "nll".

    Returns:
        A chart of the training loss, and one for each other split and score that was recorded,
        against epochs where these are known. Long curves are thinned.
    """
    progress = "epoch" if any("epoch" in record for record in records) else "step"
    keys = [key.split("/") for key in dict.fromkeys(key for record in records for key in record)]
    wanted = [
        key
        for key in keys
        if len(key) == 3 and key[2] in names and (key[0] != "train" or key[2] == "loss")
    ]
    charts: dict[str, Chart] = {}
    for split, who, score in wanted:
        tag = f"{split}/{who}/{score}"
        points = np.array([(one.get(progress), one.get(tag)) for one in records], float)
        points = points[(np.abs(points) < 1e30).all(axis=1)]
        if len(points):
            title = f"{split} {names[score]}"
            chart = Chart(f"{title} during training", Axis(progress), Axis(title))
            stride = -(-len(points) * len(wanted) // _MAX_CURVES)
            kind, name = ("ours", "ensemble") if who == "ensemble" else ("each", "members")
            xs, ys = points[::stride].T
            charts.setdefault(title, chart).add("line", kind, xs, ys, name)
    return [*charts.values()]


def traces(scalars: Mapping[str, NDArray], num_warmup: int, *names: str) -> list[Chart]:
    """Draws of every chain in order, of the log density, the step size and other scalars.

    Args:
        scalars: [C, T] by name, from draw 0 on; many draws are thinned.
        num_warmup: draws that are shaded. The axis fits what follows the first half of the warm-up.
        *names: of further scalars, if they are recorded.
    """
    charts = []
    for name in dict.fromkeys(("log_density", *names, "step_size")):
        if name in scalars:
            values = np.asarray(scalars[name], np.float64)
            low, high = span([values[:, num_warmup // 2 :]])
            title = name.replace("_", " ")
            chart = Chart(f"Trace of {title}", Axis("draw"), Axis(title, (low, high)))
            if num_warmup:
                ends = [0, num_warmup, num_warmup, 0]
                chart.add("area", "count", ends, [low, low, high, high], "warm-up")
            draws = np.arange(0, values.shape[1], max(1, values.size // _MAX_POINTS))
            for k, ys in enumerate(np.clip(values[:, draws], low, high)):
                chart.add("line", f"chain-{k % _NUM_COLOURS}", draws, ys)
            charts.append(chart)
    return charts
