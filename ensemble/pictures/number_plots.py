"""Pictures of an evaluation of numbers: fans, errors, shifts, out-of-distribution inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    PALETTE,
    TEXT_COLOR,
    WRONG_COLOR,
    draw_histogram,
    label_ends,
    legend,
    literal,
    new_figure,
    plural,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUM_BINS = 30
_MAX_MEMBERS = 20


def fan(
    values: NDArray,
    quantiles: NDArray,
    member_means: NDArray,
    ends: tuple[float, float],
    name: str,
) -> Figure:
    """What is predicted where one input moves: median, 50% and 90% intervals, members' means.

    Args:
        values: [P] of the input.
        quantiles: [5, P] of the mixture at 5, 25, 50, 75 and 95%.
        member_means: [M, P].
        ends: the least and the largest training value of the input.
        name: of the input.
    """
    figure = new_figure("", width=7.2, height=4.4)
    axes = figure.subplots()
    band: dict[str, Any] = {"color": ENSEMBLE_COLOR, "linewidth": 0}
    axes.fill_between(values, quantiles[0], quantiles[4], alpha=0.18, label="90%", **band)
    axes.fill_between(values, quantiles[1], quantiles[3], alpha=0.3, label="50%", **band)
    for one in member_means[:: -(-len(member_means) // _MAX_MEMBERS)]:
        axes.plot(values, one, color=MEMBER_COLOR, linewidth=0.8, alpha=0.7, label="members")
    axes.plot(values, quantiles[2], color=ENSEMBLE_COLOR, linewidth=2, label="median")
    for end in ends:
        axes.axvline(end, color=TEXT_COLOR, linestyle="--", linewidth=1, label="training range")
    style(axes, xlabel=literal(name), ylabel="prediction")
    axes.set_xlim(values[0], values[-1])
    legend(axes)
    return figure


def errors_against_uncertainty(section: Mapping[str, Any]) -> Figure:
    """RMSE against predicted standard deviation, of groups of examples of like deviation.

    Args:
        section: as `number_scores.score_uncertainty` returns it.
    """
    bins = section["bins"]
    deviation, rmse, counts = (np.array(bins[name]) for name in ("deviation", "rmse", "counts"))
    figure = new_figure("", width=5.6, height=4.8)
    axes = figure.subplots()
    end = 1.08 * max(deviation.max(), rmse.max())
    axes.plot((0, end), (0, end), "--", color=MEMBER_COLOR, linewidth=1, label="equal")
    # The relative standard error of a root mean square of Gaussian errors.
    error = rmse / np.sqrt(2 * counts)
    bars: dict[str, Any] = {"color": ENSEMBLE_COLOR, "linewidth": 1, "capsize": 3}
    axes.errorbar(deviation, rmse, 1.96 * error, fmt="o", label="found, 95%", **bars)
    style(axes, xlabel="predicted standard deviation", ylabel="RMSE")
    axes.set(xlim=(0, end), ylim=(0, None))
    legend(axes)
    return figure


def shift_curves(shifts: Mapping[str, Any]) -> Figure:
    """RMSE, coverage and predicted deviation against the severity of each shift.

    Args:
        shifts: by kind, as evaluation.json has them.
    """
    figure = new_figure("", width=13.0, height=4.0)
    panels = figure.subplots(1, 3)
    titles = {
        "rmse": "RMSE",
        "coverage_90": "coverage of 90% intervals",
        "disagreement": "members' disagreement (sd)",
    }
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        ends = {}
        for color, (kind, section) in zip(PALETTE, shifts.items(), strict=False):
            values = {**section["scores"], **section["spreads"]}[name]
            axes.plot(range(len(values)), values, "o-", color=color, markersize=4)
            ends[kind] = (values[-1], color)
        style(axes, xlabel="severity (0: as they are)", ylabel=title)
        if name == "coverage_90":
            axes.axhline(0.9, color=MEMBER_COLOR, linestyle="--", linewidth=1)
            axes.set_ylim(0, 1.02)
        label_ends(axes, ends)
    return figure


def deviations_in_and_out(inside: NDArray, outside: Mapping[str, NDArray]) -> Figure:
    """Distribution of the members' disagreement on the test split and on other sets.

    Args:
        inside: [N] standard deviations of the members' means.
        outside: [K] by set.
    """
    sides = [("test split", inside, ENSEMBLE_COLOR)]
    sides += [(literal(name), values, WRONG_COLOR) for name, values in outside.items()]
    everything = np.concatenate([values for _, values, _ in sides])
    top = float(np.quantile(everything, 0.99)) or 1.0
    edges = np.linspace(0, top, _NUM_BINS + 1)
    figure = new_figure("", width=6.8, height=1.5 + 1.1 * len(outside))
    panels = figure.subplots(len(sides), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values, color) in zip(panels, sides, strict=True):
        counts, _ = np.histogram(np.clip(values, 0, top), edges)
        draw_histogram(axes, counts / len(values), edges, color)
        middle = np.median(values)
        style(axes, f"{name}: {plural(len(values), 'example')}, median {middle:.4g}")
        axes.axvline(min(middle, top), color=TEXT_COLOR, linestyle="--", linewidth=1)
        axes.set_ylabel("share")
    panels[-1].set_xlabel("disagreement of the members (sd of their means); the last bin has more")
    return figure
