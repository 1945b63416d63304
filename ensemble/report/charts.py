"""Charts of an evaluation, of a training and of chains: from numbers to marks.

A page draws them as SVG and `plots` as PNG files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics import functions, interval, ranking
from ensemble.report.svg import Axis, Chart, Charts, span
from ensemble.report.table import ByName
from ensemble.storage.manifest import Json

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

_NUM_COLOURS = 8
_MAX_POINTS = 1000
_MAX_CURVES = 4000


def calibration(e: Evaluation) -> Chart:
    """Accuracy against confidence in ten bins; of numbers, targets below quantiles against levels.

    Args:
        e: Evaluation of one target.
    """
    labels = ("confidence", "accuracy") if e.is_classes else ("level", "targets below the quantile")
    chart = Chart("Calibration", *(Axis(label, (0, 1), is_share=True) for label in labels))
    chart.add("line", "ideal", [0, 1], [0, 1], "calibrated")
    p, y = e.test, e.y
    groups = e.groups
    if e.is_classes:
        groups = None
        pairs = _bins([p], y)
        if p.num_members > 1:
            xs, ys = np.transpose([(x, one.mean()) for x, one in _bins(p.members, y)])
            chart.add("line", "member", xs, ys, f"average {e.noun}")
    elif p.kind == "quantiles":
        pairs = zip(p.levels, y <= p.at_levels.T, strict=True)
    else:
        levels = np.linspace(0.05, 0.95, 19)
        pairs = zip(levels, p.pit(y) <= levels[:, None], strict=True)
    found = [(x, *interval(one, groups, bounds=(0, 1))) for x, one in pairs]
    chart.curve([one[0] for one in found], [one[1] for one in found])
    for x, _, *ends in found:
        chart.add("line", "whisker", [x, x], ends)
    return chart


def _bins(of, y: NDArray):
    """Mean confidence and hits of the predictions in each filled bin, over all predictives."""
    confidence = np.concatenate([p.confidence for p in of])
    hit = np.concatenate([functions.accuracy(p, y) for p in of])
    places = np.ceil(confidence * 10)
    each = [places == place for place in np.unique(places)]
    return [(confidence[some].mean(), hit[some]) for some in each]


def abstention(e: Evaluation) -> Chart:
    """Accuracy, or error, of answered examples against their share."""

    def curve(p) -> NDArray:
        right = functions.accuracy(p, e.y) if e.is_classes else np.abs(p.median - e.y)
        found = np.array(ranking.risk_coverage(-p.doubt(), right))
        number = found.shape[1]
        return found[:, np.linspace(number // 20, number - 1, 120).astype(int)]

    what = "accuracy" if e.is_classes else "mean absolute error"
    x = Axis("share of examples answered, most certain first", (0, 1), is_share=True)
    chart = Chart("Abstention", x, Axis(f"{what} of answers", is_share=e.is_classes))
    if e.test.num_members > 1:
        xs, ys = np.mean([curve(one) for one in e.test.members], axis=0)
        chart.add("line", "member", xs, ys, f"average {e.noun}")
    xs, ys = curve(e.test)
    chart.add("line", "ours", xs, ys, "ensemble")
    return chart


def sizes(e: Evaluation) -> Charts:
    """Headline and proper score against the number of members; dots are single members."""
    charts = []
    xs = list(e.sizes)
    x = Axis(f"number of {e.noun}s", ticks=[(x, str(x)) for x in xs if x in (1, 2, 4, 8, xs[-1])])
    for name, one in e.main.items() if len(xs) > 1 else ():
        members, _ = e.members[name]
        y = Axis(one.title, is_share=one.unit == "share")
        chart = Chart(f"{one.title} by {x.label}", x, y)
        chart.add("dots", "single", np.ones(len(members)), members, f"single {e.noun}s")
        chart.curve(xs, [each[name] for each in e.sizes.values()])
        charts.append(chart)
    return charts


def shifts(e: Evaluation) -> Charts:
    """Scores against severity, a line for each kind of shift; 0 is the test split."""
    charts: Json = {}
    for k, (kind, one) in enumerate(e.shifts.items()):
        for name, along in one["metrics"].items():
            metric = e.metrics[name]
            y = Axis(metric.title, is_share=metric.unit == "share")
            new = Chart(f"{metric.title} under shift", Axis("severity"), y)
            chart = charts.setdefault(name, new)
            chart.curve(range(len(along)), [at.value for at in along], f"chain-{k}", kind)
    return [*charts.values()]


def learning_curves(records: Sequence[ByName], names: ByName) -> Charts:
    """Scores of members and ensemble as training went on.

    Args:
        records: lines of metrics.jsonl, with keys such as `epoch`, `train/member_00/loss` and
            `validation/ensemble/nll`; any may be missing, NaN or None.
        names: the metrics by name, such as "nll".

    Returns:
        A chart of the training loss, and one for each other split and metric that was recorded,
        against epochs where these are known. Long curves are thinned.
    """
    progress = "epoch" if any("epoch" in record for record in records) else "step"
    tags = dict.fromkeys(tag for record in records for tag in record)
    charts: Json = {}
    for tag in tags:
        split, _, rest = tag.partition("/")
        who, _, score = rest.partition("/")
        if score != "loss" and (score not in names or split == "train"):
            continue  # Others may be lists, of members.
        points = np.array([(one.get(progress), one.get(tag)) for one in records], float)
        points = points[(np.abs(points) < 1e30).all(axis=1)]
        if len(points):
            title = f"{split} {names[score].title if score in names else score}"
            new = Chart(f"{title} during training", Axis(progress), Axis(title))
            kind, name = ("ours", "ensemble") if who == "ensemble" else ("each", "members")
            stride = -(-len(points) * len(tags) // _MAX_CURVES)
            charts.setdefault(title, new).add("line", kind, *points[::stride].T, name)
    return [*charts.values()]


def traces(scalars: ByName, num_warmup: int, *names: str) -> Charts:
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
