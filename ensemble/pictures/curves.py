"""Pictures of scores that change: as a run goes on, and as inputs shift."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    PALETTE,
    TEXT_COLOR,
    WRONG_COLOR,
    label_ends,
    member_line,
    new_figure,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ensemble.likelihood import Panel


_MAX_MARKED_POINTS = 30


def training_curves(records: Sequence[Mapping[str, Any]], panels: Sequence[Panel]) -> Figure:
    """Scores as the run went on.

    Args:
        records: the lines of `metrics.jsonl`, with keys such as `epoch`, `train/member_00/loss`
            and `validation/ensemble/nll`; any may be missing, NaN or None.
        panels: what to draw, one beside the other.

    Returns:
        The figure, against epochs, or against steps if no record has an epoch. A cross marks
        where a member stopped before the others.
    """
    from matplotlib.ticker import PercentFormatter  # As in `plot_style.new_figure`.

    progress = "epoch" if any("epoch" in record for record in records) else "step"
    drawn = [(panel, _curves(records, progress, panel.split, panel.score)) for panel in panels]
    drawn = [(panel, points) for panel, points in drawn if points] or drawn[:1]
    figure = new_figure("Learning curves", width=4.6 * len(drawn), height=4.2)
    for axes, (panel, points) in zip(
        figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True
    ):
        _draw_curves(axes, points)
        style(axes, panel.title, xlabel=progress, ylabel=panel.label)
        if panel.is_share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def _curves(
    records: Sequence[Mapping[str, Any]], progress: str, split: str, score: str
) -> dict[str, NDArray[np.float64]]:
    """Points `[T, 2]` of (progress, score) for the ensemble and each member that has any.

    Records without the score are left out, so that sparse ones make lines; NaN and None stay and
    break the line.
    """
    pattern = re.compile(f"{split}/(ensemble|member_[0-9]+)/{score}")
    points: dict[str, list] = {}
    for record in records:
        for match in filter(None, map(pattern.fullmatch, record)):
            if progress in record:
                points.setdefault(match[1], []).append((record[progress], record[match[0]]))
    curves = {name: np.array(points[name], dtype=np.float64) for name in sorted(points)}
    return {name: curve for name, curve in curves.items() if np.isfinite(curve).all(axis=1).any()}


def _draw_curves(axes: Axes, curves: Mapping[str, NDArray[np.float64]]) -> None:
    """Thin lines for members, a bold one for the ensemble; a word if there is nothing to draw."""
    if not curves:
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center")
        axes.set(xticks=[], yticks=[])
        return
    finite = {name: curve[np.isfinite(curve).all(axis=1)] for name, curve in curves.items()}
    end = max(curve[-1, 0] for curve in finite.values())
    bold: dict[str, Any] = {"color": ENSEMBLE_COLOR, "linewidth": 2.5, "zorder": 3}
    crosses = []
    for name, curve in curves.items():
        style = {**bold, "label": name} if name == "ensemble" else member_line(len(curves))
        marker = "." if len(curve) <= _MAX_MARKED_POINTS else ""
        axes.plot(*curve.T, marker=marker, **style)
        if finite[name][-1, 0] < end:
            cross: dict[str, Any] = {"color": WRONG_COLOR, "markersize": 8, "zorder": 4}
            crosses += axes.plot(*finite[name][-1], "X", label="member stopped", **cross)
    values = np.concatenate(list(finite.values()))[:, 1]
    if values.min() > 0 and values.max() > 10 * values.min():
        axes.set_yscale("log")
    last = {name: curve[-1, 1] for name, curve in finite.items()}
    of_members = [value for name, value in last.items() if name != "ensemble"]
    ends = {"members": (float(np.median(of_members)), MEMBER_COLOR)} if of_members else {}
    if "ensemble" in last:
        ends["ensemble"] = (last["ensemble"], ENSEMBLE_COLOR)
    label_ends(axes, ends)
    if crosses:
        axes.legend(handles=crosses[:1], frameon=False, labelcolor=TEXT_COLOR)


def shift_curves(shifts: Mapping[str, Any]) -> Figure:
    """Accuracy, NLL and ECE against the severity of each shift; severity 0 is the test split.

    Args:
        shifts: by kind, as evaluation.json has them.
    """
    figure = new_figure("", width=13.0, height=4.0)
    panels = figure.subplots(1, 3)
    titles = {"accuracy": "accuracy", "nll": "NLL, nats", "ece": "ECE"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        ends = {}
        for color, (kind, section) in zip(PALETTE, shifts.items(), strict=False):
            values, members = section["scores"][name], section["mean"][name]
            axes.plot(range(6), values, "o-", color=color, markersize=4)
            axes.plot(range(6), members, ":", color=color, linewidth=1)
            ends[kind] = (values[-1], color)
        style(axes, xlabel="severity (dotted: average member)", ylabel=title)
        label_ends(axes, ends)
    return figure
