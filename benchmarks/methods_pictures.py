"""The pictures of docs/which_method.md: scores against seconds of training and of predicting."""

import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from methods_compare import TITLES

Row = Mapping[str, Any]
SECONDS, PREDICTING = "images/methods_seconds.png", "images/methods_predicting.png"
_MARKERS = "os^vDPX"


def draw(sets: Sequence[Row], named: Collection[str], folder: pathlib.Path) -> None:
    """Draws both pictures of data sets into the folder of the page.

    Args:
        sets: with their `rounds`.
        named: entries that stand out; others are pale.
        folder: of the page.
    """
    if sets:
        _picture(sets, named, "charged_seconds", "CPU seconds of training", folder / SECONDS)
        _picture(sets, named, "predict_seconds", "CPU seconds for 1,000 rows", folder / PREDICTING)


def _picture(
    sets: Sequence[Row], named: Collection[str], across: str, title: str, path: pathlib.Path
) -> None:
    import matplotlib  # Only pictures need it.

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    columns = min(2, len(sets))
    lines = -(-len(sets) // columns)
    figure = plt.figure(figsize=(5.5 * columns, 4.2 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    names = sorted(
        {own["entry"] for row in sets for one in row["rounds"] for own in one["entries"]}
    )
    both = plt.get_cmap("tab20")(range(20))
    order = [*sorted(named), *(name for name in names if name not in named)]
    colors = {
        name: both[2 * (k % 10) + (name not in named)]  # Dark ones, then pale ones.
        for k, name in enumerate(order)
    }
    for axis, row in zip(axes.flat, sets, strict=False):
        for k, name in enumerate(names):
            points = [
                (own[across], own[one["score"]]["value"], *own[one["score"]]["of_it"])
                for one in row["rounds"]
                for own in one["entries"]
                if own["entry"] == name
            ]
            points = [one for one in points if None not in one]
            if not points:
                continue
            x, y, low, high = zip(*points, strict=True)
            beside = [one * 1.015 ** (k - len(names) / 2) for one in x]  # Bars stand side by side.
            bars = [
                [b - a for a, b in zip(low, y, strict=True)],
                [b - a for a, b in zip(y, high, strict=True)],
            ]
            axis.errorbar(
                beside,
                y,
                bars,
                marker=_MARKERS[k % len(_MARKERS)],
                markersize=5,
                capsize=2,
                label=name,
                color=colors[name],
                alpha=1.0 if name in named else 0.6,
                zorder=3 if name in named else 2,
            )
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.set_xlabel(title)
        axis.set_ylabel(f"calibrated {TITLES[row['rounds'][0]['score']]}")
        axis.set_title(row["data"])
    for axis in list(axes.flat)[len(sets) :]:
        axis.set_visible(False)
    shown = {
        name: handle
        for axis in axes.flat
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    legend = sorted(shown)
    figure.legend([shown[one] for one in legend], legend, loc="outside right upper", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
