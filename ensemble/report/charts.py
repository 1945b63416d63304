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

_TALL = (400, 320)
_SMALL = (310, 230)
_TINY = (200, 150)
_MAX_ROWS = 200
_MAX_RANKED = 20
_MAX_CHAINS = 8
_MAX_POINTS = 1000
_MAX_DIMENSIONS = 12
_NUM_BINS = 20
_MIN_WORTH_OF_BIN = 5


def shorten(name: str, most: int = 12) -> str:
    """Cuts the end off a name that is too long for an axis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _add_average(chart: Chart, e: Evaluation, xs: Any, ys: Any) -> None:
    """Adds the line of the average member, if there are several."""
    if e.test.num_members > 1:
        chart.add("line", "member", xs, ys, f"average {e.noun}")


# Calibration.


def calibration(e: Evaluation) -> list[Chart]:
    """Charts of probabilities and intervals against what was observed."""
    if e.test.kind == "several":
        return []
    if e.is_classes:
        return [reliability(e)]
    return [predictions(e), *([coverage(e)] if e.test.kind != "quantiles" else [])]


def _unit(title: str, xlabel: str, ylabel: str, note: str) -> Chart:
    """Shares against shares, with the diagonal where predictions are calibrated."""
    x, y = (Axis(label, (0, 1), is_share=True) for label in (xlabel, ylabel))
    chart = Chart(title, x, y, note, _TALL)
    chart.add("line", "ideal", [0, 1], [0, 1], "calibrated")
    return chart


def reliability(e: Evaluation) -> Chart:
    """Accuracy against confidence in ten bins, with 95% intervals and counts."""
    chart = _unit(
        "Reliability",
        "confidence",
        "accuracy",
        "On the diagonal, confidence equals accuracy. Bars are 95% intervals.",
    )
    places, counts, confidence, share, *ends = _bins([e.test], e.y)
    for left, height in zip(places / 10, 0.22 * counts / counts.max(), strict=True):
        chart.band("count", (left + 0.006, left + 0.094), (0, 0), (height, height), "examples")
    average = _bins(e.test.members, e.y)
    _add_average(chart, e, *average[2:4, np.isin(average[0], places)])
    chart.curve(confidence, share)
    chart.segments("whisker", confidence, confidence, *np.clip(ends, 0, 1))
    return chart


def _bins(of: Sequence[Any], y: NDArray) -> NDArray:
    """[6, K]: place, size, confidence, accuracy and its interval of filled bins, pooled."""
    confidence = np.concatenate([p.confidence for p in of])
    hit = np.concatenate([functions.accuracy(p, y) for p in of])
    places = np.minimum((confidence * 10 - 1e-12).astype(int), 9)
    found = []
    for i in np.unique(places):
        some = places == i
        found.append((i, some.sum(), confidence[some].mean(), *interval(hit[some], bounds=(0, 1))))
    return np.array(found, float).T


def coverage(e: Evaluation) -> Chart:
    """Share of targets in central intervals against their level, by the PIT."""
    chart = _unit(
        "Coverage",
        "level of the interval",
        "targets inside",
        "On the diagonal, intervals hold as many targets as their level says.",
    )
    levels = np.linspace(0.05, 0.95, 19)
    far = 2 * np.abs(e.test.pit(e.y) - 0.5)
    each = [interval(far <= level, e.groups, bounds=(0, 1)) for level in levels]
    share, low, high = np.array(each, float).T
    chart.band("band", levels, low, high, "95% interval")
    chart.curve(levels, share)
    return chart


def predictions(e: Evaluation) -> Chart:
    """Targets against predicted medians, with the intervals of some rows."""
    level, *ends = widest(e.test)
    some = np.random.default_rng(0).permutation(len(e.y))[:_MAX_ROWS]
    low, high, y, median = (np.asarray(one, float)[some] for one in (*ends, e.y, e.test.median))
    axis = span([low, high, y])
    percent = f"{100 * level:g}% interval"
    note = f"Targets outside their {percent} are orange."
    x = Axis(f"predicted median and {percent}", axis)
    chart = Chart("Predictions and targets", x, Axis("target", axis), note, _TALL)
    chart.add("line", "ideal", axis, axis, "equal")
    missed = (y < low) | (y > high)
    for rows, kind, name in ((~missed, "ours", "inside"), (missed, "weak", "outside")):
        chart.segments(f"{kind}-faint", low[rows], high[rows], y[rows], y[rows])
        chart.add("dots", kind, median[rows], y[rows], name)
    return chart


def widest(p: Any) -> tuple[float, NDArray, NDArray]:
    """Level, lower and upper ends [N] of 90% intervals; of quantiles, the outermost ones."""
    if p.kind == "quantiles":
        return p.levels[-1] - p.levels[0], p.at_levels[:, 0], p.at_levels[:, -1]
    return 0.9, *p.central(0.9)


# Errors.


def abstention(e: Evaluation) -> Chart:
    """Accuracy, or error, of answered examples against their share."""

    def curve(p: Any) -> NDArray:
        right = functions.accuracy(p, e.y) if e.is_classes else np.abs(p.median - e.y)
        found = np.array(ranking.risk_coverage(-p.doubt(), right))
        return found[:, np.linspace(found.shape[1] // 20, found.shape[1] - 1, 120).astype(int)]

    what = "accuracy" if e.is_classes else "mean absolute error"
    chart = Chart(
        "Abstention",
        Axis("share of examples answered, most certain first", (0, 1), is_share=True),
        Axis(f"{what} of answers", is_share=e.is_classes),
        f"{what.capitalize()} of answers, if the least certain examples are left out.",
    )
    _add_average(chart, e, *np.mean([curve(one) for one in e.test.members], axis=0))
    x, y = curve(e.test)
    at = int(np.abs(x - 0.8).argmin())
    chart.add("line", "ours", x, y)
    chart.add("dots", "ours", x[[at]], y[[at]], f"ensemble, {chart.y.text(y[at])} at 80%")
    return chart


# Members and shift.


def sizes(e: Evaluation) -> list[Chart]:
    """Scores against the number of members; dots are single members."""
    charts = []
    xs = list(e.sizes) if e.test.num_members > 1 else []
    ticks = [(x, str(x)) for x in xs if x in (1, 2, 4, 8, 16, 32, max(xs))]
    for name in {e.headline: None, e.proper: None} if xs else ():
        one = e.metrics[name]
        members = e.table.members[name]
        y = Axis(one.title + " (nats)" * (one.unit == "nats"), is_share=one.unit == "share")
        x = Axis(f"number of {e.noun}s", ticks=ticks)
        chart = Chart(f"{one.title} by number of {e.noun}s", x, y, f"Dots are single {e.noun}s.")
        chart.add("dots", "single", np.ones(len(members)), members, f"single {e.noun}s")
        ys = [each[name] for each in e.sizes.values()]
        chart.curve(xs, ys, name=f"ensemble, {y.text(ys[-1])} of {xs[-1]}")
        charts.append(chart)
    return charts


def shifts(e: Evaluation, name: str) -> list[Chart]:
    """A score against severity, one small chart for each kind of shift."""
    curves = {
        kind: (np.array(one.metrics[name], float).T, one.average_member[name])
        for kind, one in e.shifts.items()
    }
    y = Axis(is_share=e.metrics[name].unit == "share")
    y = y.fitted([values for pair in curves.values() for values in pair])
    xs = np.arange(6)
    charts = []
    for kind, (ours, member) in curves.items():
        chart = Chart(kind, Axis(), y, size=_TINY)
        chart.band("band", xs, *ours[1:])
        _add_average(chart, e, xs, member)
        chart.curve(xs, ours[0])
        charts.append(chart)
    return charts


# Training.


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
    curves: dict[tuple[str, str], dict[str, NDArray]] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        split, who, score = [*key.split("/"), "", ""][:3]
        if score in names and (split != "train" or score == "loss"):
            points = np.array([(one.get(progress), one.get(key)) for one in records], float)
            points = points[(np.abs(points) < 1e30).all(axis=1)]
            if len(points):
                curves.setdefault((split, score), {})[who] = points
    charts = []
    for (split, score), lines in curves.items():
        stride = max(1, sum(map(len, lines.values())) // _MAX_POINTS)
        values = np.concatenate([*lines.values()])[:, 1]
        is_log = bool(values.max() > 10 * values.min() > 0)
        y = Axis(f"{split} {names[score]}", is_share=score == "accuracy", is_log=is_log)
        chart = Chart(f"{y.label} during training", Axis(progress), y, size=_SMALL)
        for who in sorted(lines, reverse=True):
            xs, ys = lines[who][::stride].T
            kind, name = ("ours", "ensemble") if who == "ensemble" else ("each", "members")
            chart.add("line", kind, xs, np.log10(ys) if is_log else ys, name)
        charts.append(chart)
    return charts


# Chains.


def chains_of(
    scalars: Mapping[str, NDArray],
    live: Sequence[int],
    first: int,
    score: str,
    split: str | None,
    found: Mapping[str, Any],
) -> dict[str, list[Chart]]:
    """Charts of the scalars of a posterior, as `chains` returns them.

    Args:
        scalars: [C, T] of all draws by name, as of `ensemble.draws.store.Draws.scalars`.
        live: chains that have not failed.
        first: number of the first draw after the warm-up.
        score: name of a recorded score of single draws; may be missing.
        split: split of that score.
        found: `rhat_worst`, `rhat_max` and `ess_bulk_min` of the scalars.
    """
    names = {
        "log_density": "log density (nats)",
        score: f"{split} {score.replace('_', ' ')}",
        "step_size": "step size",
    }
    traces = {title: scalars[name] for name, title in names.items() if name in scalars}
    worst = str(found["rhat_worst"])
    ranks = {}
    numbers = np.array([found["rhat_max"], found["ess_bulk_min"]], float)
    drawn = scalars.get(worst, scalars.get(f"value:{worst}"))
    if drawn is not None and np.isfinite(numbers).all():  # Of draws enough.
        ranks[worst] = (drawn[list(live), first:], *numbers)
    return chains(traces, ranks, first)


def chains(
    traces: Mapping[str, NDArray],
    ranks: Mapping[str, tuple[NDArray, float, float]],
    num_warmup: int,
) -> dict[str, list[Chart]]:
    """Charts "traces" of draws [C, T], and "ranks" of `(draws, R-hat, bulk ESS)`, by name."""
    return {
        "traces": [trace(name, one, num_warmup) for name, one in traces.items()],
        "ranks": [rank(name, *one) for name, one in ranks.items() if len(one[0]) > 1],
    }


def trace(name: str, values: NDArray, num_warmup: int) -> Chart:
    """Draws of every chain in order; many are thinned.

    Args:
        name: of the quantity, with its unit, such as "log density (nats)".
        values: [C, T] from draw 0 on.
        num_warmup: draws that are shaded. The axis fits what follows the first half of the warm-up.
    """
    values = np.asarray(values, np.float64)
    low, high = span([values[:, num_warmup // 2 :]], 0.06)
    chart = Chart(f"Trace of {name}", Axis("draw"), Axis(name, (low, high)), size=_SMALL)
    if num_warmup:
        chart.band("count", (0, num_warmup), (low, low), (high, high), "warm-up")
    draws = np.arange(0, values.shape[1], max(1, values.size // _MAX_POINTS))
    _add_chains(chart, draws, np.clip(values[:, draws], low, high))
    return chart


def rank(name: str, values: NDArray, r_hat: float, ess: float) -> Chart:
    """Share of each chain's draws by their rank among all draws: flat if the chains agree.

    Rank histograms of Vehtari et al. 2021 (https://doi.org/10.1214/20-BA1221, section 4.3), as
    lines.

    Args:
        name: of the scalar.
        values: draws [C, T] after the warm-up.
        r_hat: of the scalar.
        ess: its bulk ESS.
    """
    shares, width = rank_histogram(np.asarray(values, np.float64), ess)
    farthest = np.argsort(-np.abs(shares - 1).max(axis=1), kind="stable")[:_MAX_RANKED]
    edges = np.repeat(np.linspace(0, 1, shares.shape[1] + 1), 2)[1:-1]
    chart = Chart(
        f"Ranks of {name}",
        Axis(f"rank (R-hat {r_hat:.3f}, bulk ESS {ess:,.0f})", is_share=True),
        Axis(f"draws of {shorten(name, 20)} by rank, relative"),
        size=_SMALL,
    )
    low = max(1 - width, 0)
    high = 1 + width
    chart.band("count", (0, 1), (low, low), (high, high), "99% of agreeing chains")
    _add_chains(chart, edges, np.repeat(shares[np.sort(farthest)], 2, axis=1))
    return chart


def _add_chains(chart: Chart, xs: NDArray, lines: NDArray) -> None:
    """Adds a line for each chain, of few chains in its own colour."""
    for k, ys in enumerate(lines):
        named = (f"chain-{k}", f"chain {k}") if len(lines) <= _MAX_CHAINS else ("each", "chains")
        chart.add("line", named[0], xs, ys, named[1])


def rank_histogram(values: NDArray, ess: float) -> tuple[NDArray, float]:
    """Histograms of the pooled ranks of draws.

    Args:
        values: [C, T], finite.
        ess: effective sample size of the C * T draws.

    Returns:
        Shares [C, B] of each chain's draws in each bin, relative to those of all, and how far 99%
        of the shares of agreeing chains are from 1: counts are hypergeometric, of as many draws as
        a chain's are worth.
    """
    worth = max(ess / len(values), 1)
    num_bins = int(np.clip(worth // _MIN_WORTH_OF_BIN, 2, _NUM_BINS))
    # Ties, as of rounded probabilities, are broken at random, or they would pile up.
    order = np.lexsort((np.random.default_rng(0).random(values.size), values.ravel()))
    bins = (np.argsort(order) * num_bins // values.size).reshape(values.shape)
    counts = np.stack([np.bincount(chain, minlength=num_bins) for chain in bins])
    variance = (num_bins - 1) * (1 - 1 / len(values)) / worth
    return counts / counts.mean(axis=0), 2.576 * float(np.sqrt(variance))


# Applications.


def marginals(edges: NDArray, cdf: NDArray) -> list[Chart]:
    """Histograms of the draws of a density, one chart for each of the first dimensions.

    Args:
        edges: [D, K], ascending.
        cdf: [D, K], share of the draws below each edge.
    """
    charts = []
    for d, (xs, shares) in enumerate(zip(edges[:_MAX_DIMENSIONS], cdf, strict=False)):
        heights = np.repeat(np.diff(shares) / np.diff(xs), 2)
        around = np.repeat(xs, 2)[1:-1]
        y = Axis("density", (0, 1.05 * float(heights.max()) or 1))
        chart = Chart(f"Density of dimension {d}", Axis(f"dimension {d}"), y, size=_SMALL)
        chart.band("band", around, 0 * heights, heights)
        chart.add("line", "ours", around, heights)
        charts.append(chart)
    return charts
