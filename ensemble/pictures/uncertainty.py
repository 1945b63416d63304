"""Entropy and what it tells: right from wrong, and the test split from other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble import metrics
from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    PALETTE,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    draw_histogram,
    legend,
    literal,
    new_figure,
    plural,
    shorten,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NUM_BINS = 30


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
    edges = np.linspace(0, np.log(max(num_classes, 2)), _NUM_BINS + 1)

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


def entropies_in_and_out(
    inside: NDArray, outside: Mapping[str, NDArray], num_classes: int
) -> Figure:
    """Distribution of the predictive entropy on the test split and on other sets.

    Args:
        inside: [N] nats.
        outside: [K] nats by set.
        num_classes: C; log C is the highest entropy.
    """
    edges = np.linspace(0, np.log(max(num_classes, 2)), _NUM_BINS + 1)
    figure = new_figure("", width=6.8, height=1.5 + 1.1 * len(outside))
    sides = [("test split", inside, ENSEMBLE_COLOR)]
    sides += [(literal(name), values, WRONG_COLOR) for name, values in outside.items()]
    panels = figure.subplots(len(sides), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values, color) in zip(panels, sides, strict=True):
        counts, _ = np.histogram(np.clip(values, 0, edges[-1]), edges)
        draw_histogram(axes, counts / len(values), edges, color)
        style(axes, f"{name}: {plural(len(values), 'example')}, median {np.median(values):.3f}")
        axes.axvline(np.median(values), color=TEXT_COLOR, linestyle="--", linewidth=1)
        axes.set_ylabel("share")
    panels[-1].set_xlabel("entropy of the prediction, nats")
    return figure


def roc_curves(inside: NDArray, outside: Mapping[str, NDArray]) -> Figure:
    """True against false positive rate of the entropy, for every out-of-distribution set.

    Args:
        inside: [N] entropies of the test split, nats.
        outside: [K] by set.
    """
    figure = new_figure("", width=5.6, height=5.0)
    axes = figure.subplots()
    axes.plot((0, 1), (0, 1), "--", color=TEXT_COLOR, linewidth=1)
    for i, (name, values) in enumerate(outside.items()):
        ranked = metrics.rank(inside, values)
        false_rate, true_rate, _ = ranked.rates()
        label = f"{literal(shorten(name))}, AUROC {ranked.scores()['auroc']:.3f}"
        axes.plot(false_rate, true_rate, color=PALETTE[i % len(PALETTE)], label=label)
    style(axes, xlabel="false positive rate", ylabel="true positive rate")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend(axes, loc="lower right")
    return figure


def precision_recall(classes: Mapping[str, tuple[NDArray, NDArray]]) -> Figure:
    """Precision against recall where the examples of a class are called by its probability.

    Args:
        classes: by name, what is called positive above a threshold: values of the other examples,
            and of those of the class.
    """
    figure = new_figure("", width=5.6, height=5.0)
    axes = figure.subplots()
    for i, (name, sides) in enumerate(classes.items()):
        color, ranked = PALETTE[i % len(PALETTE)], metrics.rank(*sides)
        _, recall, precision = ranked.rates()
        share = len(sides[1]) / len(ranked.order)
        label = f"{literal(shorten(name))}, AUPRC {ranked.scores()['aupr']:.3f}"
        axes.step(recall, precision, where="pre", color=color, label=label)
        axes.axhline(share, linestyle="--", color=color, linewidth=1)
    style(axes, xlabel="recall", ylabel="precision")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend(axes, loc="best")
    return figure
