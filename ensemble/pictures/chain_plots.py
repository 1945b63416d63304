"""Pictures of chains, each meant to be read in half a minute: where they went, and whether alike.

Every function returns a Matplotlib `Figure` that no global state knows of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    PALETTE,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    legend,
    literal,
    new_figure,
    plural,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ensemble.draws.diagnostics import Diagnostics, ScalarDiagnostics

_MAX_POINTS = 2000
_MAX_COLUMNS, MAX_PANELS, _MAX_ROWS = 3, 6, 8
_MAX_MARGINALS = 12
_NUM_BINS, _MIN_DRAWS_OF_BIN = 20, 5
_MIN_DRAWS = 50
"""Draws of a chain that thinning leaves, if there are as many."""
_BAND = 0.99
_UNIT, _MAX_HEIGHT = 0.38, 0.92
"""Heights of a bar: of the expected count, and of the tallest that is drawn; 1 is a row."""


def trace_plot(traces: Mapping[str, NDArray], num_warmup: int, title: str) -> Figure:
    """Draws of every chain one after the other: a line a chain, a panel a quantity.

    Args:
        traces: `[C, T]` each, from draw 0 on, by the name of the axis with its unit, such as
            "log density (nats)"; drawn in this order.
        num_warmup: draws that are shaded. The axes fit what comes after the warm-up's first half,
            whose lines may leave the picture.
        title: of the figure.

    Returns:
        The figure; of long chains every n-th draw.
    """
    figure = new_figure(title, width=10.0, height=1.2 + 2.1 * len(traces))
    panels = figure.subplots(len(traces), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(panels, traces.items(), strict=True):
        num_chains, num_draws = values.shape
        stride = max(1, -(-num_draws // _MAX_POINTS))
        style(axes, name)
        if num_warmup:
            shade: dict[str, Any] = {"color": MEMBER_COLOR, "alpha": 0.15, "linewidth": 0}
            axes.axvspan(-0.5, num_warmup - 0.5, label="warm-up", **shade)
        for k, chain in enumerate(np.asarray(values, np.float64)):
            drawn = np.arange(0, num_draws, stride)
            named = num_chains <= len(PALETTE)
            line: dict[str, Any] = {
                "color": PALETTE[k % len(PALETTE)],
                "alpha": 0.85 if named else 0.4,
                "linewidth": 0.9,
                "label": f"chain {k}" if named else plural(num_chains, "chain"),
            }
            axes.plot(drawn, chain[drawn], marker="." if len(drawn) == 1 else "", **line)
        _fit(axes, np.asarray(values, np.float64), num_warmup)
        axes.set_xlim(-0.5, max(num_draws, num_warmup, 1) - 0.5)
    thinned = f" (1 of {stride} is shown)" if stride > 1 else ""
    panels[-1].set_xlabel(f"draw{thinned}", color=TEXT_COLOR)
    legend(panels[0], figure, loc="outside lower center", ncols=8)
    return figure


def rank_plot(scalars: Mapping[str, NDArray], diagnostics: Diagnostics, title: str) -> Figure:
    """Are the chains alike? Histograms of the ranks that each chain's draws have among all.

    Chains that sample one distribution have flat histograms (Vehtari et al. 2021,
    https://doi.org/10.1214/20-BA1221, section 4.3); of a single chain the halves are compared.
    Draws are thinned to about as many as they are worth, by bulk ESS, else chance alone would
    look like a difference. Bars are cut at 2.4 times their expectation.

    Args:
        scalars: `[C, T]` each, after the warm-up; drawn are the first and then the worst by R-hat,
            six at most.
        diagnostics: what `summarise` makes of them.
        title: of the figure.

    Returns:
        The figure: bars outside the band that holds 99% of them, if the chains agree, are orange.
    """
    names = _chosen(scalars, diagnostics)
    num_columns = min(_MAX_COLUMNS, max(len(names), 1))
    num_rows = -(-max(len(names), 1) // num_columns)
    row_height = 0.9 + 0.4 * min(_MAX_ROWS, max(map(len, scalars.values()), default=1))
    width = max(6.0, 1.0 + 3.7 * num_columns)
    figure = new_figure(title, width, height=1.3 + num_rows * row_height)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    if not names:
        grid[0].text(0.5, 0.5, "no scalar varies", transform=grid[0].transAxes, ha="center")
        return figure
    for axes, name in zip(grid, names, strict=False):
        _draw_ranks(axes, np.asarray(scalars[name]), name, diagnostics.scalars[name])
    for axes in grid[max(len(names) - num_columns, 0) : len(names)]:
        axes.set_xlabel("rank among all draws", color=TEXT_COLOR)
    legend(grid[0], figure, loc="outside lower center", ncols=3)
    return figure


def pair_plot(scalars: Mapping[str, NDArray], is_divergent: NDArray, title: str) -> Figure:
    """Draws of every two variables beside each other, and of each alone on the diagonal.

    Args:
        scalars: `[C, T]` each; all are drawn.
        is_divergent: `[C, T]`: draws that are marked, for they crowd where a posterior is narrow.
        title: of the figure.

    Returns:
        The figure; of very many draws evenly spread ones, and all that diverged.
    """
    names, marked = list(scalars), np.asarray(is_divergent, bool).ravel()
    size = max(len(names), 1)
    figure = new_figure(title, width=max(5.0, 1.2 + 1.7 * size), height=max(3.5, 1.1 + 1.5 * size))
    grid = figure.subplots(size, size, squeeze=False)
    if not names:
        grid[0, 0].set_axis_off()
        grid[0, 0].text(0.5, 0.5, "no scalar varies", transform=grid[0, 0].transAxes, ha="center")
        return figure
    flat = [np.asarray(one, np.float64).ravel() for one in scalars.values()]
    drawn = np.arange(0, len(marked), max(1, -(-len(marked) // _MAX_POINTS)))
    for i, j in np.ndindex(size, size):
        axes: Axes = grid.item(i, j)
        if j > i:
            axes.set_axis_off()
            continue
        style(axes, literal(names[i]) if i == j else "")
        axes.tick_params(labelleft=j == 0 and i > 0, labelbottom=i == size - 1, labelsize=7)
        if i == j:
            axes.hist(flat[i], bins=_NUM_BINS, color=ENSEMBLE_COLOR)
            axes.set_yticks([])
            continue
        dots: dict[str, Any] = {"linestyle": "", "marker": "."}
        axes.plot(
            flat[j][drawn], flat[i][drawn], color=ENSEMBLE_COLOR, markersize=2, alpha=0.3, **dots
        )
        if marked.any():
            axes.plot(
                flat[j][marked], flat[i][marked], color=WRONG_COLOR, markersize=5,
                label="divergent draws", **dots,
            )  # fmt: skip
    if marked.any() and size > 1:
        legend(grid[-1, 0], figure, loc="outside lower center")
    return figure


def marginal_plot(edges: NDArray, cdf: NDArray, title: str) -> Figure:
    """Histograms of the draws of a density, a panel per dimension.

    Args:
        edges: `[D, K]`, ascending.
        cdf: `[D, K]`, share of the draws below each edge.
        title: of the figure.

    Returns:
        The figure: densities, at most twelve of them.
    """
    shown = min(len(edges), _MAX_MARGINALS)
    num_columns = min(_MAX_COLUMNS, shown)
    num_rows = -(-shown // num_columns)
    figure = new_figure(title, width=max(6.0, 3.7 * num_columns), height=1.0 + 2.4 * num_rows)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes in grid[shown:]:
        axes.set_axis_off()
    for d, axes in enumerate(grid[:shown]):
        density = np.diff(cdf[d]) / np.diff(edges[d])
        style(axes, f"dimension {d}", ylabel="density" if d % num_columns == 0 else "")
        axes.stairs(density, edges[d], fill=True, color=ENSEMBLE_COLOR)
        axes.set_ylim(0)
    return figure


def _fit(axes: Axes, values: NDArray[np.float64], num_warmup: int) -> None:
    """Fits the vertical axis to `[C, T]` without the first half of the warm-up."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        axes.text(0.5, 0.5, "nothing finite", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
        return
    settled = values[:, num_warmup // 2 :]
    settled = settled[np.isfinite(settled)] if np.isfinite(settled).any() else finite
    low, high = settled.min(), settled.max()
    if low > 0 and high > 10 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        return
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)


def _chosen(scalars: Mapping[str, NDArray], diagnostics: Diagnostics) -> list[str]:
    """The first scalar, then those of the highest R-hat; constants have no ranks, nor has NaN."""
    ranked = [name for name in scalars if name in diagnostics.scalars]
    ranked = [name for name in ranked if not np.isnan(diagnostics.scalars[name].ess_bulk)]
    worst = sorted(ranked, key=lambda name: -np.nan_to_num(diagnostics.scalars[name].rhat))
    first = [name for name in ranked if name == next(iter(scalars))]
    return (first + [name for name in worst if name not in first])[:MAX_PANELS]


def _draw_ranks(axes: Axes, values: NDArray, name: str, diagnostics: ScalarDiagnostics) -> None:
    """One row of bars a chain; of a single chain its halves, as R-hat takes them."""
    names = [str(k) for k in range(len(values))]
    if len(values) == 1:
        half = values.shape[1] // 2
        values, names = np.stack([values[0, :half], values[0, -half:]]), ["1st half", "2nd half"]
    counts, low, high, stride = _rank_histogram(values, diagnostics.ess_bulk)
    expected = counts.mean(axis=0)
    # Of many chains those that are furthest from flat, in order.
    distance = np.sum((counts - expected) ** 2 / expected, axis=1)
    rows = np.sort(np.argsort(-distance, kind="stable")[:_MAX_ROWS])

    edges = np.linspace(0, 1, counts.shape[1] + 1)
    box: dict[str, Any] = {"width": np.diff(edges), "align": "edge"}
    for baseline, k in zip(-np.arange(len(rows)), rows, strict=True):
        inside = (counts[k] >= low) & (counts[k] <= high)
        heights = np.minimum(_UNIT * counts[k] / expected, _MAX_HEIGHT)
        for chosen, color, label in (
            (inside, RIGHT_COLOR, "inside the band"),
            (~inside, WRONG_COLOR, "outside"),
        ):
            shown = np.where(chosen, heights, 0)
            axes.bar(
                edges[:-1], shown, bottom=baseline, color=color, label=label, alpha=0.75, **box
            )
        axes.bar(
            edges[:-1],
            np.minimum(_UNIT * high / expected, _MAX_HEIGHT) - _UNIT * low / expected,
            bottom=baseline + _UNIT * low / expected,
            color=MEMBER_COLOR,
            alpha=0.3,
            label="99% of bars, if the chains agree",
            **box,
        )
    thinned = "" if stride == 1 else f", 1 draw of {stride}"
    some = "" if len(rows) == len(values) else f", {len(rows)} of {len(values)} chains"
    caption = f"R-hat {diagnostics.rhat:.3f}, bulk ESS {diagnostics.ess_bulk:,.0f}{thinned}{some}"
    style(axes, f"{literal(name)}\n{caption}", ylabel="chain" if len(names) > 2 else "")
    axes.grid(visible=False)
    axes.set(xlim=(0, 1), ylim=(0.92 - len(rows), 1))
    axes.set_xticks([0, 1], ["lowest", "highest"])
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.get_xticklabels()[1].set_horizontalalignment("right")
    axes.set_yticks(_UNIT - np.arange(len(rows)), [names[k] for k in rows])


def _rank_histogram(values: NDArray, ess: float) -> tuple[NDArray[np.int64], NDArray, NDArray, int]:
    """Histograms of the pooled ranks of thinned draws.

    Args:
        values: `[C, T]`, finite.
        ess: what the C * T draws are worth.

    Returns:
        Counts `[C, B]`; the lowest and the highest count `[B]` inside the band: with independent
        draws a count is hypergeometric; and the stride of the thinning.
    """
    num_draws = values.shape[1]
    stride = max(1, min(round(values.size / max(ess, 1)), num_draws // _MIN_DRAWS))
    values = values[:, ::stride]
    # Ties, as of rounded probabilities, are broken at random, or they would pile up.
    order = np.lexsort((np.random.default_rng(0).random(values.size), values.ravel()))
    ranks = np.empty(values.size, np.int64)
    ranks[order] = np.arange(values.size)
    num_draws = values.shape[1]
    num_bins = int(np.clip(num_draws // _MIN_DRAWS_OF_BIN, 2, _NUM_BINS))
    bins = (ranks * num_bins // values.size).reshape(values.shape)
    counts = np.stack([np.bincount(chain, minlength=num_bins) for chain in bins])
    low, high = scipy.stats.hypergeom.interval(_BAND, values.size, counts.sum(axis=0), num_draws)
    return counts, low, high, stride
