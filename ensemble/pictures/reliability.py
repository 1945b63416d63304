"""Accuracy against confidence: of members and ensemble, before and after a temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble import metrics
from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    draw_histogram,
    legend,
    member_line,
    new_figure,
    plural,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    bins = metrics.reliability_bins(ensemble_log_probs, labels)
    curve = _frame(figure, bins)
    for member_log_probs in log_probs:
        member = _occupied(metrics.reliability_bins(member_log_probs, labels))
        curve.plot(member.confidence, member.accuracy, ".-", **member_line(len(log_probs)))
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
    legend(curve, figure, loc="outside lower center", ncols=3)
    return figure


def _frame(figure: Figure, bins: metrics.ReliabilityBins) -> Axes:
    """Axes with the diagonal, above a strip that counts the examples in each bin."""
    curve, strip = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    curve.plot((0, 1), (0, 1), "--", color=TEXT_COLOR, linewidth=1, label="perfectly calibrated")
    curve.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    draw_histogram(strip, bins.counts, np.linspace(0, 1, len(bins.counts) + 1), ENSEMBLE_COLOR)
    style(strip, xlabel="confidence: probability of the predicted class", ylabel="examples")
    strip.set_yscale("log")
    strip.set_ylim(0.5, 2 * max(int(bins.counts.max()), 10))  # a bin of one example still shows
    return curve


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


def tempered_diagram(
    log_probs: NDArray, labels: NDArray, temperature: float | None, scores: Mapping[str, float]
) -> Figure:
    """Accuracy against confidence of the ensemble, before and after one temperature.

    The area of a dot grows with the root of the number of examples in its bin.

    Args:
        log_probs: [N, C] of the ensemble.
        labels: [N].
        temperature: fitted on the calibration split; None where there is none.
        scores: `ece` before, and `calibrated_ece` after.
    """
    curves = [(f"as it is, ECE {scores['ece']:.4f}", log_probs, ENSEMBLE_COLOR)]
    if temperature is not None:
        after = metrics.apply_temperature(log_probs, temperature)
        name = f"at temperature {temperature:.2f}, ECE {scores['calibrated_ece']:.4f}"
        curves.append((name, after, WRONG_COLOR))
    figure = new_figure("", width=6.4, height=5.6)
    axes = _frame(figure, metrics.reliability_bins(log_probs, labels))
    for name, values, color in curves:
        bins = metrics.reliability_bins(values, labels)
        kept = bins.counts > 0
        axes.plot(bins.confidence[kept], bins.accuracy[kept], "-", color=color, alpha=0.6)
        sizes = 8 + 60 * np.sqrt(bins.counts[kept] / bins.counts.max())
        axes.scatter(bins.confidence[kept], bins.accuracy[kept], sizes, color=color, label=name)
    style(axes, ylabel="accuracy in the bin")
    legend(axes, loc="upper left")
    return figure
