"""Members compared with their ensemble: scores, sizes, disagreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.pictures.plot_style import ENSEMBLE_COLOR, MEMBER_COLOR, legend, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_NUMBERED = 20  # Members whose numbers have room.


def member_scores(
    section: Mapping[str, Any], titles: Mapping[str, str], shares: Sequence[str] = ()
) -> Figure:
    """Two scores of every member beside the ensemble's: what the ensemble brings.

    Args:
        section: of a split, as `scoring.sections.score_split` returns it.
        titles: of the axes, by the names of the two scores.
        shares: those of them that are shares of 1, shown in percent.

    Returns:
        The figure.
    """
    from matplotlib.ticker import PercentFormatter  # As in `plot_style.new_figure`.

    figure = new_figure("What the ensemble brings over its members", width=9.0, height=4.4)
    panels = figure.subplots(1, 2)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        number = "{:.2%}" if name in shares else "{:.4f}"
        score = section["scores"][name]
        _draw_members(axes, np.asarray(score["members"]), score["value"], number)
        axes.set_ylabel(title)
        if name in shares:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    legend(panels[0], figure, loc="outside lower center", ncols=3)
    return figure


def _draw_members(axes: Axes, values: NDArray, ensemble: float, number: str) -> None:
    """Dots for members, a band for their mean and deviation, a line for the ensemble."""
    finite = np.isfinite(values)
    title = f"ensemble {number.format(ensemble)}"
    if finite.any():
        mean = np.mean(values[finite])
        deviation = np.std(values[finite], ddof=1) if finite.sum() > 1 else 0.0
        title += f", members {number.format(mean)} ± {number.format(deviation)}"
        faint: dict[str, Any] = {"color": MEMBER_COLOR, "alpha": 0.18, "linewidth": 0}
        axes.axhspan(mean - deviation, mean + deviation, label="their mean ± sd", **faint)
        axes.axhline(mean, color=MEMBER_COLOR, linestyle="--", linewidth=1)
    if not finite.all():
        title += f" ({np.sum(~finite)} infinite, not drawn)"
    if np.isfinite(ensemble):
        axes.axhline(ensemble, color=ENSEMBLE_COLOR, linewidth=2.5, label="ensemble")
    dots: dict[str, Any] = {"color": MEMBER_COLOR, "markersize": 8, "markeredgecolor": "w"}
    axes.plot(np.flatnonzero(finite), values[finite], "o", label="members", zorder=3, **dots)
    style(axes, title, xlabel="members, in order")
    axes.set_xlim(-0.7, len(values) - 0.3)
    axes.set_xticks([])
    axes.ticklabel_format(axis="y", useOffset=False)


_OF_CLASSES = {"nll": "NLL, nats", "accuracy": "accuracy"}


def score_against_size(
    section: Mapping[str, Any], noun: str, titles: Mapping[str, str] = _OF_CLASSES
) -> Figure:
    """Two scores against the number of members, and what one more is expected to bring.

    Args:
        section: as `next_member.score_sizes` returns it.
        noun: what a member is called.
        titles: of the axes, by the names of the scores.
    """
    figure = new_figure("", width=9.0, height=3.8)
    sizes = np.array(section["sizes"])
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        mean = np.array(section["mean"][name], float)
        low, high = (np.array(section[end][name], float) for end in ("low", "high"))
        band = {"color": ENSEMBLE_COLOR, "alpha": 0.3, "linewidth": 0}
        axes.fill_between(sizes, low, high, label="5% to 95% of the subsets", **band)
        axes.plot(sizes, mean, "o-", color=ENSEMBLE_COLOR, label="mean over subsets")
        gain = section["expected_gain"][name]
        if gain is not None:
            expected = mean[-1] + (gain if name == "accuracy" else -gain)
            line = {"color": MEMBER_COLOR, "linestyle": ":", "marker": "D", "markersize": 5}
            axes.plot([sizes[-1], sizes[-1] + 1], [mean[-1], expected], label="expected", **line)
        style(axes, xlabel=f"{noun}s", ylabel=title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.ticklabel_format(axis="y", useOffset=False)
        legend(axes)
    return figure


def disagreement_dots(
    matrix: Sequence[Sequence[float]], members: Sequence[int], noun: str
) -> Figure:
    """Share of test examples on which a member and each other one predict different classes.

    Args:
        matrix: [M, M].
        members: [M], their numbers.
        noun: what a member is called.
    """
    from matplotlib.ticker import PercentFormatter  # As in `plot_style.new_figure`.

    shares = np.array(matrix)
    others = shares[~np.eye(len(shares), dtype=bool)].reshape(len(shares), -1)
    positions = np.arange(len(shares))
    figure = new_figure("", width=6.4, height=3.6)
    axes = figure.subplots()
    dots: dict[str, Any] = {"color": MEMBER_COLOR, "alpha": 0.5, "markersize": 6}
    axes.plot(np.repeat(positions, others.shape[1]), others.ravel(), "o", label="a pair", **dots)
    bars: dict[str, Any] = {"color": ENSEMBLE_COLOR, "markersize": 14, "markeredgewidth": 2.5}
    axes.plot(positions, others.mean(axis=1), "_", label=f"mean of the {noun}", **bars)
    style(axes, xlabel=noun, ylabel="predict different classes")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    top = float(others.max()) or 1.0
    axes.set_ylim(-0.04 * top, 1.06 * top)
    if len(members) <= _MAX_NUMBERED:
        axes.set_xticks(positions, [str(k) for k in members])
    else:
        axes.set_xticks([])
    legend(axes, figure, loc="outside lower center", ncols=2)
    return figure
