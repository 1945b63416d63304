"""Pictures of examples: those that an ensemble is least certain of, and those it got wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble import metrics
from ensemble.pictures.plot_style import (
    MEMBER_COLOR,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    as_pictures,
    new_figure,
    plural,
    shorten,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MAX_COLUMNS = 4
_NUM_BARS = 3
_NUM_EXAMPLES = 8


def uncertain_examples(
    read: Callable[[NDArray], NDArray],
    log_probs: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    count: int = 16,
) -> Figure:
    """The images whose ensemble prediction has the highest entropy, the least certain first.

    Args:
        read: returns the images `[K, H, W, C]` of examples by their indices `[K]`; of any range,
            drawn in colour if C is 3, else in grey.
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.
        class_names: a name for every class.
        count: number of images to draw, if there are as many.

    Returns:
        The figure: above each image its label and the two most probable classes, in blue if the
        first of them is right and in vermilion if not.
    """
    labels = np.asarray(labels)
    probs = np.exp(metrics.ensemble_log_probs(log_probs))
    chosen = least_certain(np.asarray(log_probs), count)
    pictures = as_pictures(read(chosen))
    num_columns = min(_MAX_COLUMNS, len(chosen))
    num_rows = -(-len(chosen) // num_columns)
    figure = new_figure(
        f"{plural(len(chosen), 'least certain example')} of {len(probs):,}",
        width=max(4.0, 2.0 * num_columns),
        height=0.5 + 2.3 * num_rows,
    )
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, n, picture in zip(grid, chosen, pictures, strict=False):
        axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
        first, *others = np.argsort(-probs[n], kind="stable")[:2]
        right = first == labels[n]
        lines = [
            f"true: {shorten(class_names[labels[n]])}",
            f"{'✓' if right else '✗'} {shorten(class_names[first])} ({probs[n, first]:.0%})",
            *(f"{shorten(class_names[other])} ({probs[n, other]:.0%})" for other in others),
        ]
        color = RIGHT_COLOR if right else WRONG_COLOR
        axes.set_title("\n".join(lines), fontsize=9, color=color, parse_math=False)
    return figure


def least_certain(log_probs: NDArray, count: int = _NUM_EXAMPLES) -> NDArray:
    """Indices of the examples whose prediction has the highest entropy, that of most first.

    Args:
        log_probs: [M, N, C] of the members.
        count: how many, if there are as many.
    """
    return np.argsort(-metrics.uncertainty(log_probs)["total"], kind="stable")[:count]


def confidently_wrong(log_probs: NDArray, labels: NDArray) -> NDArray:
    """Indices of the wrong predictions of the highest probability.

    Args:
        log_probs: [M, N, C] of the members.
        labels: [N].
    """
    mean = metrics.ensemble_log_probs(log_probs)
    wrong = np.flatnonzero(mean.argmax(axis=-1) != labels)
    return wrong[np.argsort(-mean[wrong].max(axis=-1), kind="stable")][:_NUM_EXAMPLES]


def examples(
    inputs: NDArray,
    log_probs: NDArray,
    labels: NDArray,
    class_names: Sequence[str],
    chosen: NDArray,
) -> Figure:
    """Images beside the probabilities of their likeliest classes, a dot for each member.

    Args:
        inputs: [K, H, W, C], the chosen images, of any range.
        log_probs: [M, N, C] of the members.
        labels: [N].
        class_names: C names.
        chosen: [K], indices of the examples, at least one.
    """
    probs = np.exp(log_probs[:, chosen])
    mean = np.exp(metrics.ensemble_log_probs(log_probs[:, chosen]))
    pictures = as_pictures(inputs)
    num_rows = -(-len(chosen) // _MAX_COLUMNS)
    figure = new_figure("", width=12.0, height=1.9 * num_rows)
    grid = figure.subplots(num_rows, 2 * _MAX_COLUMNS, squeeze=False).reshape(-1, 2)
    for axes in grid.ravel():
        axes.set_axis_off()
    for i, (picture_axes, bar_axes) in enumerate(grid[: len(chosen)]):
        label = labels[chosen[i]]
        picture_axes.imshow(pictures[i], cmap="gray", vmin=0, vmax=1)
        title = {"fontsize": 9, "color": TEXT_COLOR, "parse_math": False}
        picture_axes.set_title(f"true: {shorten(class_names[label])}", **title)
        top = np.argsort(-mean[i], kind="stable")[:_NUM_BARS]
        _draw_bars(
            bar_axes, probs[:, i, top], mean[i, top], [class_names[c] for c in top], top == label
        )
    return figure


def _draw_bars(
    axes: Axes, members: NDArray, mean: NDArray, names: Sequence[str], is_label: NDArray
) -> None:
    """Bars [K] of the ensemble's probabilities, with the members' [M, K] as dots."""
    axes.set_axis_on()
    places = np.arange(len(mean))
    colors = np.where(is_label, RIGHT_COLOR, WRONG_COLOR)
    axes.barh(places, mean, color=colors, alpha=0.75)
    jitter = np.linspace(-0.25, 0.25, len(members))[:, None]
    dots: dict[str, Any] = {"color": MEMBER_COLOR, "markersize": 2.5}
    axes.plot(members, np.broadcast_to(places, members.shape) + jitter, "o", **dots)
    axes.set_yticks(places, [shorten(name) for name in names], parse_math=False)
    axes.invert_yaxis()
    style(axes)
    axes.tick_params(labelsize=8)
    axes.set(xlim=(0, 1.04), xticks=(0, 0.5, 1))
