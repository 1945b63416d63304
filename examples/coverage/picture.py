"""How often intervals hold a new target, input by input, under the intervals of one example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    legend,
    new_figure,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = (ENSEMBLE_COLOR, WRONG_COLOR)
_LEAST = 0.2  # Coverage at the lower end of the axis, unless some is lower.


class Example(NamedTuple):
    """One data set and what one method makes of it.

    Attributes:
        inputs: `[N]`.
        targets: `[N]`.
        truth: `[G]`, the function at the points.
        plain: lower and upper ends `[G]` of the intervals.
        conformal: the same of conformal intervals.
    """

    inputs: NDArray
    targets: NDArray
    truth: NDArray
    plain: tuple[NDArray, NDArray]
    conformal: tuple[NDArray, NDArray]


class Line(NamedTuple):
    """Found coverage.

    Attributes:
        label: what it is of.
        kind: lines of one kind have one color: 0 or 1.
        is_conformal: drawn as a dotted line.
        coverage: `[G]`.
        low: `[G]`, the lower end of its interval.
        high: `[G]`.
    """

    label: str
    kind: int
    is_conformal: bool
    coverage: NDArray
    low: NDArray
    high: NDArray


def draw(
    points: NDArray,
    data_between: tuple[float, float],
    level: float,
    examples: Mapping[str, Example],
    lines: Mapping[str, Sequence[Line]],
    title: str,
) -> Figure:
    """Draws a column for each method: intervals of an example above, found coverage below.

    Args:
        points: `[G]` inputs, increasing.
        data_between: least and largest distance from zero of inputs that are learned.
        level: what the intervals promise.
        examples: by method.
        lines: by method.
        title: of the figure.
    """
    figure = new_figure(title, width=10.0, height=6.2)
    grid = figure.subplots(2, len(examples), sharex=True, sharey="row", height_ratios=(1, 1.15))
    least = min(float(line.low.min()) for method in lines.values() for line in method)
    for column, (method, example) in enumerate(examples.items()):
        above, below = grid[:, column]
        for axes in (above, below):
            _shade_data(axes, data_between)
        _draw_example(above, points, example)
        style(above, method, ylabel="target" if not column else "")
        for line in lines[method]:
            _draw_line(below, points, line)
        below.axhline(level, color=TEXT_COLOR, linewidth=1, linestyle=(0, (6, 3)), zorder=2.5)
        below.set_ylim(min(_LEAST, least), 1.0)
        below.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
        style(below, "", "input", "new targets held" if not column else "")
    shown = np.concatenate([part for one in examples.values() for part in (one.truth, one.targets)])
    low, high = shown.min(), shown.max()
    margin = 0.4 * (high - low)
    grid[0, 0].set_ylim(low - margin, high + margin)
    grid[0, 0].set_xlim(points[0], points[-1])
    legend(grid[0, -1], figure, loc="outside upper right", ncols=4, fontsize=8.5)
    legend(grid[1, -1], figure, loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def _shade_data(axes: Axes, data_between: tuple[float, float]) -> None:
    near, far = data_between
    for ends in ((-far, -near), (near, far)):
        axes.axvspan(*ends, color=MEMBER_COLOR, alpha=0.1, linewidth=0)


def _draw_example(axes: Axes, points: NDArray, example: Example) -> None:
    band: dict[str, Any] = {"color": ENSEMBLE_COLOR, "linewidth": 0}
    axes.fill_between(points, *example.plain, alpha=0.25, label="90% interval", **band)
    for end, label in zip(example.conformal, ("conformal", None), strict=True):
        axes.plot(points, end, color=ENSEMBLE_COLOR, linewidth=1.2, linestyle=":", label=label)
    axes.plot(points, example.truth, color=TEXT_COLOR, linewidth=1.4, label="truth")
    axes.plot(example.inputs, example.targets, ".", color=TEXT_COLOR, markersize=3, label="data")


def _draw_line(axes: Axes, points: NDArray, line: Line) -> None:
    color = _COLORS[line.kind]
    axes.fill_between(points, line.low, line.high, color=color, alpha=0.15, linewidth=0)
    kind: dict[str, Any] = {"linestyle": ":" if line.is_conformal else "-", "linewidth": 1.8}
    axes.plot(points, line.coverage, color=color, label=line.label, **kind)
