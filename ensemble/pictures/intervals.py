"""Predicted numbers against their targets, and how often intervals cover these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ensemble.metrics.censoring import kaplan_meier
from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    draw_histogram,
    legend,
    new_figure,
    plural,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_DRAWN = 300
_NUM_BINS = 10


def predictions(
    middle: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    targets: ArrayLike,
    title: str,
    percent: str = "90",
) -> Figure:
    """Medians with central intervals against the targets; those that miss are orange.

    Args:
        middle: `[N]` medians.
        low: `[N]` lower ends.
        high: `[N]` upper ends.
        targets: `[N]`.
        title: what is shown.
        percent: of targets, that the intervals are to cover.

    Returns:
        The figure, of at most 300 examples, evenly spread over the targets.
    """
    targets = np.asarray(targets, np.float64)
    order = np.argsort(targets, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, _MAX_DRAWN).astype(int))]
    medians, lower, upper, y = (
        np.asarray(one, np.float64)[chosen] for one in (middle, low, high, targets)
    )
    is_covered = (y >= lower) & (y <= upper)
    heading = f"{title}: predictions with {percent}% intervals" if title else ""
    figure = new_figure(heading, width=6.4, height=6.0)
    axes = figure.subplots()
    ends = float(min(y.min(), lower.min())), float(max(y.max(), upper.max()))
    axes.plot(ends, ends, color=MEMBER_COLOR, linestyle="--", linewidth=1, label="equal")
    for covered, color, what in ((True, RIGHT_COLOR, "covered"), (False, WRONG_COLOR, "missed")):
        index = is_covered == covered
        axes.vlines(y[index], lower[index], upper[index], color=color, alpha=0.5, linewidth=1)
        axes.plot(y[index], medians[index], ".", color=color, label=f"target {what}")
    drawn = f"{plural(len(targets), 'example')}, {np.mean(is_covered):.0%} of those covered"
    caption = f"target ({drawn})"
    style(axes, xlabel=caption, ylabel="prediction")
    legend(axes)
    return figure


def coverage_curve(
    pit: ArrayLike,
    title: str,
    calibrated: ArrayLike | None = None,
    censored: ArrayLike | None = None,
) -> Figure:
    """Found against nominal coverage of central intervals, and the histogram of the PIT.

    Args:
        pit: `[N]`, the predictive CDF at the targets; uniform where predictions are calibrated.
        title: what is shown.
        calibrated: `[N]`, the same after calibration; None leaves it out.
        censored: `[N]` bool: the target is at least this; what is found is then estimated, as far
            as that reaches. None: all targets are known.
    """
    num_examples = np.size(pit)
    is_censored = np.zeros(num_examples, bool) if censored is None else np.asarray(censored)
    asked = "do intervals cover what they say?"
    figure = new_figure(f"{title}: {asked}" if title else "", width=9.0, height=4.4)
    curve, histogram = figure.subplots(1, 2)
    nominal = np.linspace(0, 1, 101)

    def found_by(pit: ArrayLike) -> np.ndarray:
        estimated = kaplan_meier(pit, is_censored)
        ends = [(0.5 - level / 2, 0.5 + level / 2) for level in nominal]
        return np.array([estimated.share(*both) for both in ends], np.float64)

    found = found_by(pit)
    deviation = np.sqrt(nominal * (1 - nominal) / num_examples)
    band: dict[str, Any] = {"color": MEMBER_COLOR, "alpha": 0.2, "linewidth": 0}
    low, high = np.clip(nominal - 1.96 * deviation, 0, 1), np.clip(nominal + 1.96 * deviation, 0, 1)
    curve.fill_between(nominal, low, high, label="95% by chance, at each level", **band)
    curve.plot(nominal, nominal, color=MEMBER_COLOR, linestyle="--", linewidth=1)
    curve.plot(nominal, found, color=ENSEMBLE_COLOR, linewidth=2, label="found")
    if calibrated is not None:
        line: dict[str, Any] = {"color": WRONG_COLOR, "linewidth": 1.5, "linestyle": ":"}
        curve.plot(nominal, found_by(calibrated), label="with a factor on the scale", **line)
    style(curve, xlabel="nominal coverage", ylabel="found coverage")
    legend(curve)
    bars = kaplan_meier(pit, is_censored)
    weights = bars.mass * num_examples
    counts, edges = np.histogram(bars.values, bins=_NUM_BINS, range=(0, 1), weights=weights)
    expected = num_examples / _NUM_BINS
    spread = 1.96 * np.sqrt(expected * (1 - 1 / _NUM_BINS))
    behind = 0.9  # Bars have 1.
    histogram.axhspan(max(expected - spread, 0), expected + spread, zorder=behind, **band)
    draw_histogram(histogram, counts, edges, ENSEMBLE_COLOR)
    histogram.axhline(expected, color=MEMBER_COLOR, linestyle="--", linewidth=1)
    style(histogram, xlabel="predictive CDF at the target (PIT)", ylabel="examples")
    return figure


def quantile_curve(levels: ArrayLike, shares: ArrayLike, num_examples: int, title: str) -> Figure:
    """Share of targets at or below each quantile, against its level.

    Args:
        levels: `[Q]`, in 0..1.
        shares: `[Q]`, found.
        num_examples: N.
        title: what is shown.
    """
    levels = np.asarray(levels, np.float64)
    figure = new_figure(title, width=5.0, height=4.4)
    axes = figure.subplots()
    deviation = 1.96 * np.sqrt(levels * (1 - levels) / num_examples)
    axes.errorbar(
        levels, levels, deviation, color=MEMBER_COLOR, linestyle="--", label="95% by chance"
    )
    axes.plot(levels, shares, "o-", color=ENSEMBLE_COLOR, linewidth=2, label="found")
    style(axes, xlabel="level", ylabel="share of targets below")
    legend(axes)
    return figure


def coverage_of_groups(shares: ArrayLike, level: float) -> Figure:
    """How many groups have which coverage.

    Args:
        shares: `[G]` of a group's examples that are covered, in 0..1.
        level: that is guaranteed on average.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter  # As in `plot_style.new_figure`.

    covered = np.asarray(shares, np.float64)
    counts, edges = np.histogram(covered, bins=2 * _NUM_BINS, range=(0, 1))
    figure = new_figure("", width=6.4, height=3.2)
    axes = figure.subplots()
    draw_histogram(axes, counts, edges, ENSEMBLE_COLOR)
    line: dict[str, Any] = {"color": TEXT_COLOR, "linestyle": "--", "linewidth": 1}
    axes.axvline(level, label="guaranteed on average", **line)
    style(axes, xlabel="covered examples of a group", ylabel="groups")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes)
    return figure
