"""Pictures of a run, each meant to be read in half a minute.

Every function returns a Matplotlib `Figure` that no global state knows of; the caller saves it or
turns it into an array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble import metrics
from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    as_pictures,
    draw_histogram,
    legend,
    member_line,
    new_figure,
    plural,
    shorten,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMNS = 4
_MAX_MARKED_POINTS = 30
_NUM_ENTROPY_BINS = 30


def reliability_diagram(log_probs: ArrayLike, labels: ArrayLike, title: str) -> Figure:
    """Accuracy against confidence (Guo et al. 2017, arXiv:1706.04599), with counts underneath.

    The bars on the ensemble's points are 95% Wilson intervals, which tell a bin that is badly
    calibrated from one that holds few examples.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.
        title: what is shown, such as "Reliability on MNIST, test".

    Returns:
        The figure.
    """
    log_probs = np.asarray(log_probs)
    ensemble_log_probs = metrics.ensemble_log_probs(log_probs)
    figure = new_figure(title, width=6.0, height=6.6)
    curve, strip = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))

    curve.plot((0, 1), (0, 1), "--", color=TEXT_COLOR, linewidth=1, label="perfectly calibrated")
    for member_log_probs in log_probs:
        member = _occupied(metrics.reliability_bins(member_log_probs, labels))
        curve.plot(member.confidence, member.accuracy, ".-", **member_line(len(log_probs)))
    bins = metrics.reliability_bins(ensemble_log_probs, labels)
    counts, confidence, accuracy = _occupied(bins)
    low, high = _wilson_interval(accuracy, counts)
    curve.vlines(confidence, low, high, color=ENSEMBLE_COLOR, alpha=0.5)
    bold: dict[str, Any] = {"color": ENSEMBLE_COLOR, "linewidth": 2, "zorder": 3}
    curve.plot(confidence, accuracy, "o-", label="ensemble, 95% intervals", **bold)
    curve.text(0.97, 0.03, "overconfident below the diagonal", ha="right", color=TEXT_COLOR)
    score = metrics.scores(ensemble_log_probs, labels)
    caption = (
        f"ECE {score['ece']:.4f}, accuracy {score['accuracy']:.2%}, "
        f"{plural(len(log_probs), 'member')}, {plural(len(ensemble_log_probs), 'example')}"
    )
    style(curve, caption, ylabel="accuracy in the bin")
    curve.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    draw_histogram(strip, bins.counts, np.linspace(0, 1, len(bins.counts) + 1), ENSEMBLE_COLOR)
    style(strip, xlabel="confidence: probability of the predicted class", ylabel="examples")
    strip.set_yscale("log")
    strip.set_ylim(0.5, 2 * max(counts.max(), 10))  # a bin of one example still shows
    legend(curve, figure, loc="outside lower center", ncols=3)
    return figure


def member_scores(summary: Mapping[str, Any]) -> Figure:
    """Accuracy and NLL of every member beside the ensemble's: what the ensemble brings.

    Args:
        summary: what `metrics.summarise` returns.

    Returns:
        The figure.
    """
    from matplotlib.ticker import PercentFormatter  # As in `plot_style.new_figure`.

    members, ensemble = summary["members"], summary["ensemble"]
    figure = new_figure("What the ensemble brings over its members", width=9.0, height=4.4)
    left, right = figure.subplots(1, 2)
    _draw_members(left, np.asarray(members["accuracy"]), ensemble["accuracy"], "{:.2%}")
    left.set_ylabel("accuracy (higher is better)")
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    _draw_members(right, np.asarray(members["nll"]), ensemble["nll"], "{:.4f}")
    right.set_ylabel("NLL in nats (lower is better)")
    legend(left, figure, loc="outside lower center", ncols=3)
    return figure


def uncertain_examples(
    inputs: ArrayLike,
    log_probs: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    count: int = 16,
) -> Figure:
    """The images whose ensemble prediction has the highest entropy, the least certain first.

    Args:
        inputs: `[N, H, W, C]` images of any range; drawn in colour if C is 3, else in grey.
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.
        class_names: a name for every class.
        count: number of images to draw, if there are as many.

    Returns:
        The figure: above each image its label and the two most probable classes, in blue if the
        first of them is right and in vermilion if not.
    """
    pictures, labels = as_pictures(np.asarray(inputs)), np.asarray(labels)
    probs = np.exp(metrics.ensemble_log_probs(log_probs))
    entropies = metrics.uncertainty(log_probs)["total"]
    least_certain = np.argsort(-entropies, kind="stable")[:count]

    num_columns = min(_MAX_COLUMNS, len(least_certain))
    num_rows = -(-len(least_certain) // num_columns)
    figure = new_figure(
        f"{plural(len(least_certain), 'least certain example')} of {len(entropies):,}",
        width=max(4.0, 2.0 * num_columns),
        height=0.5 + 2.3 * num_rows,
    )
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, n in zip(grid, least_certain, strict=False):
        axes.imshow(pictures[n], cmap="gray", vmin=0, vmax=1)
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


def training_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Training loss, validation NLL and validation accuracy as the run went on.

    Args:
        records: the lines of `metrics.jsonl`, with keys such as `epoch`, `train/member_00/loss`
            and `validation/ensemble/nll`; any may be missing, NaN or None.

    Returns:
        The figure, against epochs, or against steps if no record has an epoch. A cross marks
        where a member stopped before the others.
    """
    from matplotlib.ticker import PercentFormatter  # As in `plot_style.new_figure`.

    progress = "epoch" if any("epoch" in record for record in records) else "step"
    figure = new_figure("Learning curves", width=12.0, height=4.2)
    loss, nll, accuracy = figure.subplots(1, 3)
    _draw_curves(loss, _curves(records, progress, "train", "loss"))
    style(loss, "Training loss", xlabel=progress, ylabel="loss (nats)")
    _draw_curves(nll, _curves(records, progress, "validation", "nll"))
    style(nll, "Validation NLL (lower is better)", xlabel=progress, ylabel="NLL (nats)")
    _draw_curves(accuracy, _curves(records, progress, "validation", "accuracy"))
    style(accuracy, "Validation accuracy", xlabel=progress, ylabel="accuracy")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def entropy_histogram(log_probs: ArrayLike, labels: ArrayLike) -> Figure:
    """Entropy of the ensemble's right and wrong predictions: does it know when it is wrong?

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.

    Returns:
        The figure, from 0 nats (certain) to log C (no idea), with the medians as dashed lines.
    """
    from matplotlib.ticker import MaxNLocator  # As in `plot_style.new_figure`.

    ensemble_log_probs = metrics.ensemble_log_probs(log_probs)
    num_classes = ensemble_log_probs.shape[-1]
    entropies = metrics.uncertainty(log_probs)["total"]
    right = ensemble_log_probs.argmax(axis=-1) == np.asarray(labels)
    edges = np.linspace(0, np.log(max(num_classes, 2)), _NUM_ENTROPY_BINS + 1)

    figure = new_figure("Uncertainty of right and of wrong predictions", width=7.0, height=4.8)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name, chosen, color in (
        (panels[0], "right prediction", entropies[right], RIGHT_COLOR),
        (panels[1], "wrong prediction", entropies[~right], WRONG_COLOR),
    ):
        counts, _ = np.histogram(np.clip(chosen, 0, edges[-1]), edges)
        draw_histogram(axes, counts, edges, color)
        caption = plural(len(chosen), name)
        if len(chosen) > 0:
            axes.axvline(np.median(chosen), color=TEXT_COLOR, linestyle="--")
            caption += f", median entropy {np.median(chosen):.3f} nats"
        style(axes, caption, ylabel="examples")
        axes.set_ylim(0, 1.05 * max(counts.max(), 1))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    panels[1].set_xlim(0, edges[-1])
    panels[1].set_xlabel(
        f"entropy of the prediction (nats): 0 is certain, {edges[-1]:.2f} is uniform"
    )
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
    for name, curve in curves.items():
        style = {**bold, "label": name} if name == "ensemble" else member_line(len(curves))
        marker = "." if len(curve) <= _MAX_MARKED_POINTS else ""
        axes.plot(*curve.T, marker=marker, **style)
        if finite[name][-1, 0] < end:
            cross: dict[str, Any] = {"color": WRONG_COLOR, "markersize": 8, "zorder": 4}
            axes.plot(*finite[name][-1], "X", label="member stopped", **cross)
    values = np.concatenate(list(finite.values()))[:, 1]
    if values.min() > 0 and values.max() > 10 * values.min():
        axes.set_yscale("log")
    legend(axes)


def _occupied(bins: metrics.ReliabilityBins) -> metrics.ReliabilityBins:
    """The bins that hold examples."""
    kept = bins.counts > 0
    return metrics.ReliabilityBins(bins.counts[kept], bins.confidence[kept], bins.accuracy[kept])


def _wilson_interval(share: NDArray, count: NDArray, z: float = 1.96) -> tuple[NDArray, NDArray]:
    """Interval of a binomial share (Wilson 1927); 95% for z = 1.96."""
    scale = 1 + z**2 / count
    centre = (share + z**2 / (2 * count)) / scale
    half_width = z / scale * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return centre - half_width, centre + half_width
