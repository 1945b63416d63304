"""The picture of a confusion matrix: what is taken for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.pictures.plot_style import (
    TEXT_COLOR,
    literal,
    new_figure,
    shorten,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NUMBERED = 20
"""Rows of a matrix whose cells still have room for numbers."""


def confusion_matrix(
    confusion: Sequence[Sequence[int]], names: Sequence[str], chosen: Sequence[int]
) -> Figure:
    """Counts of label against prediction; colour is the share of the label's examples.

    Args:
        confusion: [C, C], rows are labels.
        names: [C].
        chosen: the classes that are drawn; if not all, a last column has the other predictions.
    """
    every, rows = np.array(confusion), np.array(chosen)
    counts = every[np.ix_(rows, rows)]
    labels = columns = [literal(shorten(names[c])) for c in chosen]
    if len(chosen) < len(names):
        others = every[rows].sum(axis=1) - counts.sum(axis=1)
        counts, columns = np.column_stack([counts, others]), [*columns, "all others"]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = new_figure("", width=6.4, height=5.8)
    axes = figure.subplots()
    _draw_matrix(axes, counts, labels, columns, shares**0.4)
    axes.set(xlabel="prediction", ylabel="label")
    return figure


def _draw_matrix(
    axes: Axes, counts: NDArray, rows: Sequence[str], columns: Sequence[str], shades: NDArray
) -> None:
    """A heat map [R, K] with counts in its cells, where they have room."""
    top = shades.max() or 1.0
    axes.imshow(np.where(counts == 0, np.nan, shades), cmap="Blues", vmin=0, vmax=top)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelcolor=TEXT_COLOR, labelsize=8)
    axes.xaxis.label.set_color(TEXT_COLOR)
    axes.yaxis.label.set_color(TEXT_COLOR)
    if len(rows) > MAX_NUMBERED:
        return
    axes.set_xticks(range(len(columns)), columns, rotation=60 if max(map(len, columns)) > 3 else 0)
    axes.set_yticks(range(len(rows)), rows)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            dark = shades[row, column] > 0.6 * top
            text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
            axes.text(column, row, str(count), color="w" if dark else "#111111", **text)
