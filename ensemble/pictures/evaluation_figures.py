"""Pictures of an evaluation; they look as those of `ensemble.pictures.plots` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    PALETTE,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    as_pictures,
    draw_histogram,
    legend,
    literal,
    new_figure,
    plural,
    shorten,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUM_BINS = 30
_NUM_EXAMPLES = 8
_NUM_COLUMNS = 4
_NUM_BARS = 3
_MAX_NUMBERED = 20  # Rows of a matrix whose cells still have room for numbers.


def reliability(
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
    axes, strip = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    axes.plot((0, 1), (0, 1), "--", color=TEXT_COLOR, linewidth=1)
    for name, values, color in curves:
        bins = metrics.reliability_bins(values, labels)
        kept = bins.counts > 0
        axes.plot(bins.confidence[kept], bins.accuracy[kept], "-", color=color, alpha=0.6)
        sizes = 8 + 60 * np.sqrt(bins.counts[kept] / bins.counts.max())
        axes.scatter(bins.confidence[kept], bins.accuracy[kept], sizes, color=color, label=name)
    style(axes, ylabel="accuracy in the bin")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend(axes, loc="upper left")
    counts = metrics.reliability_bins(log_probs, labels).counts
    draw_histogram(strip, counts, np.linspace(0, 1, len(counts) + 1), ENSEMBLE_COLOR)
    style(strip, xlabel="confidence: probability of the predicted class", ylabel="examples")
    strip.set_yscale("log")
    strip.set_ylim(0.5, 2 * max(counts.max(), 10))
    return figure


def score_against_size(section: Mapping[str, Any]) -> Figure:
    """NLL and accuracy against the number of members, and what one more is expected to bring.

    Args:
        section: as `next_member.score_sizes` returns it.
    """
    figure = new_figure("", width=9.0, height=3.8)
    sizes = np.array(section["sizes"])
    panels = zip(figure.subplots(1, 2), ("nll", "accuracy"), ("NLL, nats", "accuracy"), strict=True)
    for axes, name, title in panels:
        mean = np.array(section["mean"][name], float)
        low, high = (np.array(section[end][name], float) for end in ("low", "high"))
        band = {"color": ENSEMBLE_COLOR, "alpha": 0.3, "linewidth": 0}
        axes.fill_between(sizes, low, high, label="5% to 95% of the subsets", **band)
        axes.plot(sizes, mean, "o-", color=ENSEMBLE_COLOR, label="mean over subsets")
        gain = section["expected_gain"][name]
        if gain is not None:
            expected = mean[-1] + (-gain if name == "nll" else gain)
            line = {"color": MEMBER_COLOR, "linestyle": ":", "marker": "D", "markersize": 5}
            axes.plot([sizes[-1], sizes[-1] + 1], [mean[-1], expected], label="expected", **line)
        style(axes, xlabel="members", ylabel=title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.ticklabel_format(axis="y", useOffset=False)
        legend(axes)
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


def shift_curves(shifts: Mapping[str, Any], test: Mapping[str, Any]) -> Figure:
    """Accuracy, NLL and ECE against the severity of each shift; severity 0 is the test split.

    Args:
        shifts: by kind, as evaluation.json has them.
        test: the section of the test split.
    """
    figure = new_figure("", width=11.0, height=4.0)
    panels = figure.subplots(1, 3)
    titles = {"accuracy": "accuracy", "nll": "NLL, nats", "ece": "ECE"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for color, (kind, section) in zip(PALETTE, shifts.items(), strict=False):
            values = [test["ensemble"][name], *section["ensemble"][name]]
            members = [test["mean"][name], *section["mean"][name]]
            axes.plot(range(6), values, "o-", color=color, markersize=4, label=kind)
            axes.plot(range(6), members, ":", color=color, linewidth=1)
        style(axes, xlabel="severity (dotted: mean member)", ylabel=title)
    legend(panels[0], figure, loc="outside lower center", ncols=5)
    return figure


def disagreement_matrix(matrix: Sequence[Sequence[float]], members: Sequence[int]) -> Figure:
    """Share of test examples on which two members predict different classes.

    Args:
        matrix: [M, M].
        members: [M], their numbers.
    """
    values = 100 * np.array(matrix)
    figure = new_figure("", width=5.6, height=5.0)
    axes = figure.subplots()
    shown = np.where(np.eye(len(values), dtype=bool), np.nan, values)
    _draw_matrix(axes, shown, [str(k) for k in members], "{:.1f}", "Blues")
    axes.set(xlabel="member", ylabel="member")
    return figure


def confusion_matrix(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Figure:
    """Counts of label against prediction; colour is the share of the label's examples.

    Args:
        confusion: [C, C], rows are labels.
        names: [C].
    """
    counts = np.array(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = new_figure("", width=6.4, height=5.8)
    axes = figure.subplots()
    _draw_matrix(
        axes, counts, [literal(shorten(name)) for name in names], "{:d}", "Blues", shares**0.4
    )
    axes.set(xlabel="prediction", ylabel="label")
    return figure


def _draw_matrix(
    axes: Axes,
    values: NDArray,
    names: Sequence[str],
    number: str,
    colours: str,
    shades: NDArray | None = None,
) -> None:
    """A heat map [K, K] with numbers in its cells, where they have room."""
    shades = values if shades is None else shades
    top = np.nanmax(shades) if np.isfinite(shades).any() else 1.0
    axes.imshow(np.where(values == 0, np.nan, shades), cmap=colours, vmin=0, vmax=top or 1.0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelcolor=TEXT_COLOR, labelsize=8)
    axes.xaxis.label.set_color(TEXT_COLOR)
    axes.yaxis.label.set_color(TEXT_COLOR)
    if len(names) > _MAX_NUMBERED:
        return
    axes.set_xticks(range(len(names)), names, rotation=60 if max(map(len, names)) > 3 else 0)
    axes.set_yticks(range(len(names)), names)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value) and value:
            dark = shades[row, column] > 0.6 * (top or 1.0)
            text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
            axes.text(column, row, number.format(value), color="w" if dark else "#111111", **text)


def least_certain(log_probs: NDArray) -> NDArray:
    """Indices of the examples whose prediction has the highest entropy.

    Args:
        log_probs: [M, N, C] of the members.
    """
    return np.argsort(-metrics.uncertainty(log_probs)["total"], kind="stable")[:_NUM_EXAMPLES]


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
        inputs: [N, H, W, C] of any range.
        log_probs: [M, N, C] of the members.
        labels: [N].
        class_names: C names.
        chosen: indices of the examples, at least one.
    """
    probs = np.exp(log_probs[:, chosen])
    mean = np.exp(metrics.ensemble_log_probs(log_probs[:, chosen]))
    pictures = as_pictures(inputs[chosen])
    num_rows = -(-len(chosen) // _NUM_COLUMNS)
    figure = new_figure("", width=12.0, height=1.9 * num_rows)
    grid = figure.subplots(num_rows, 2 * _NUM_COLUMNS, squeeze=False).reshape(-1, 2)
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


def entropies(log_probs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Entropy [K] of the ensemble by set, from [M, K, C] of the members."""
    return {name: metrics.uncertainty(values)["total"] for name, values in log_probs.items()}
