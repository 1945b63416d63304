"""The figures show the numbers they claim to, and draw without a warning on any ensemble."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from conftest import ROOT
from matplotlib.colors import to_hex, to_rgb
from run_parts import of_classes
from scipy.special import log_softmax

from ensemble import metrics
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.pictures import curves, examples, member_scores, plot_style, reliability, uncertainty
from ensemble.scoring.sections import score_split


def section_of(log_probs, labels):
    return score_split(MeanOfSoftmax(arrays={LOG_PROBS: log_probs}, targets=labels))


def draw_members(summary):
    """The members' accuracy and NLL beside the ensemble's."""
    titles = {"accuracy": "accuracy (higher is better)", "nll": "NLL in nats (lower is better)"}
    return member_scores.member_scores(summary, titles, shares=("accuracy",))


def random_case(seed=0, num_members=5, num_examples=400, num_classes=10, scale=1.5):
    """Log-probabilities [M, N, C] that favour the label, and labels [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_examples)
    logits = scale * rng.normal(size=(num_members, num_examples, num_classes))
    logits[:, np.arange(num_examples), labels] += 2 * scale
    return log_softmax(logits, axis=-1), labels


def certain_case(num_wrong):
    """Two members that are sure of class 0 for ten examples, of which some are of class 1."""
    log_probs = np.full((2, 10, 2), -np.inf)
    log_probs[..., 0] = 0.0
    return log_probs, (np.arange(10) < num_wrong).astype(int)


def rounded_up_case():
    """Uniform predictions that rounding lifts a little over a sum of one, and over log C nats."""
    probs = np.full((2, 3, 10), np.nextafter(np.float32(0.1), np.float32(1)))
    return np.log(probs), np.array([0, 0, 1])


EDGE_CASES = {
    "typical": random_case(),
    "one_member": random_case(num_members=1),
    "one_example": random_case(num_examples=1),
    "one_member_one_example": random_case(num_members=1, num_examples=1),
    "one_class": (np.zeros((2, 3, 1)), np.zeros(3, int)),
    "two_classes": random_case(num_classes=2),
    "hundred_classes": random_case(num_classes=100),
    "hundred_members": random_case(num_members=100, num_examples=50),
    "all_right": certain_case(num_wrong=0),
    "all_wrong": certain_case(num_wrong=10),
    "rounded_up": rounded_up_case(),
    "float32": (random_case()[0].astype(np.float32), random_case()[1]),
}


@pytest.fixture(params=EDGE_CASES)
def case(request):
    return EDGE_CASES[request.param]


def draw(figure):
    """Draws for real, so that layout and text are tried too; warnings are errors."""
    pixels = plot_style.figure_to_array(figure)
    width, height = figure.get_size_inches() * figure.dpi
    # Matplotlib 3.10 drops a fraction of a pixel, 3.11 rounds it.
    np.testing.assert_allclose(pixels.shape, (height, width, 3), atol=1)
    assert pixels.dtype == np.uint8
    return pixels


def lines(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label]


def line(axes, label):
    (only,) = lines(axes, label)
    return only


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def strings(texts):
    return [text.get_text() for text in texts]


def left_title(axes):
    return axes.get_title(loc="left")


# Drawing.


@pytest.mark.check
def test_array_holds_the_colours_of_the_figure():
    pixels = draw(uncertainty.entropy_histogram(*random_case()))
    colors = {tuple(color) for color in pixels.reshape(-1, 3)}
    assert tuple(pixels[0, 0]) == (255, 255, 255)
    for color in (plot_style.RIGHT_COLOR, plot_style.WRONG_COLOR):
        assert tuple(round(255 * part) for part in to_rgb(color)) in colors


@pytest.mark.check
def test_matplotlib_is_imported_late_and_pyplot_never():
    program = """
import sys
import numpy as np
from ensemble.pictures import plot_style, uncertainty
assert "matplotlib" not in sys.modules, "imported at start"
figure = uncertainty.entropy_histogram(np.log(np.full((2, 3, 4), 0.25)), np.zeros(3, int))
plot_style.figure_to_array(figure)
assert "matplotlib.pyplot" not in sys.modules, "pyplot keeps global state"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Reliability diagram.


def test_reliability_diagram_plots_the_reliability_bins(case):
    log_probs, labels = case
    figure = reliability.reliability_diagram(log_probs, labels, "Reliability on $test_set$")
    draw(figure)
    curve, strip = figure.axes
    ensemble = metrics.ensemble_log_probs(log_probs)
    bins = metrics.reliability_bins(ensemble, labels)
    occupied = bins.counts > 0
    points = line(curve, "ensemble, 95% intervals").get_xydata()
    np.testing.assert_array_equal(points[:, 0], bins.confidence[occupied])
    np.testing.assert_array_equal(points[:, 1], bins.accuracy[occupied])
    np.testing.assert_array_equal(heights(strip), bins.counts)
    np.testing.assert_allclose([bar.get_x() for bar in strip.patches], np.arange(15) / 15)
    assert figure.get_suptitle() == "Reliability on $test_set$"
    assert f"ECE {metrics.ece(ensemble, labels):.4f}" in left_title(curve)


def test_reliability_diagram_has_a_line_for_every_member():
    log_probs, labels = random_case(num_members=3)
    curve, _ = reliability.reliability_diagram(log_probs, labels, "").axes
    members = lines(curve, "members")
    assert len(members) == 3
    for log_probs_m, member in zip(log_probs, members, strict=True):
        bins = metrics.reliability_bins(log_probs_m, labels)
        np.testing.assert_array_equal(member.get_xdata(), bins.confidence[bins.counts > 0])
        np.testing.assert_array_equal(member.get_ydata(), bins.accuracy[bins.counts > 0])


def test_reliability_bars_are_wilson_intervals():
    log_probs, labels = random_case()
    curve, _ = reliability.reliability_diagram(log_probs, labels, "").axes
    bins = metrics.reliability_bins(metrics.ensemble_log_probs(log_probs), labels)
    (bars,) = curve.collections
    drawn = iter(bars.get_segments())
    for count, confidence, accuracy in zip(*bins, strict=True):
        if count > 0:
            hits = round(accuracy * count)
            interval = scipy.stats.binomtest(hits, count).proportion_ci(method="wilson")
            expected = [(confidence, interval.low), (confidence, interval.high)]
            np.testing.assert_allclose(next(drawn), expected, atol=1e-4)
    assert next(drawn, None) is None


def test_legend_names_each_kind_of_line_once():
    (legend,) = reliability.reliability_diagram(*random_case(), "").legends
    expected = ["perfectly calibrated", "members", "ensemble, 95% intervals"]
    assert strings(legend.get_texts()) == expected


# Members beside the ensemble.


def test_member_scores_shows_members_mean_deviation_and_ensemble(case):
    summary = section_of(*case)
    figure = draw_members(summary)
    draw(figure)
    for axes, name in zip(figure.axes, ("accuracy", "nll"), strict=True):
        values = np.array(summary["scores"][name]["members"])
        if not np.isfinite(values).all():
            continue
        dots = line(axes, "members")
        np.testing.assert_array_equal(dots.get_xdata(), np.arange(len(values)))
        np.testing.assert_array_equal(dots.get_ydata(), values)
        assert set(line(axes, "ensemble").get_ydata()) == {summary["scores"][name]["value"]}
        deviation = values.std(ddof=1) if len(values) > 1 else 0.0
        (band,) = axes.patches
        edges = [band.get_y(), band.get_y() + band.get_height()]
        np.testing.assert_allclose(edges, values.mean() + np.array([-1, 1]) * deviation, atol=1e-9)


def test_member_scores_states_the_numbers():
    summary = section_of(*random_case())
    summary["scores"]["accuracy"]["members"][:] = [0.875, 0.89, 0.86, 0.875, 0.875]
    summary["scores"]["accuracy"]["value"] = 0.9125
    accuracy, nll = draw_members(summary).axes
    assert left_title(accuracy) == "ensemble 91.25%, members 87.50% ± 1.06%"
    mean, deviation = (
        np.mean(summary["scores"]["nll"]["members"]),
        np.std(summary["scores"]["nll"]["members"], ddof=1),
    )
    expected = (
        f"ensemble {summary['scores']['nll']['value']:.4f}, members {mean:.4f} ± {deviation:.4f}"
    )
    assert left_title(nll) == expected


def test_member_scores_says_which_members_cannot_be_drawn():
    summary = section_of(*random_case(num_members=3))
    summary["scores"]["nll"]["members"] = [0.5, np.inf, 0.25]
    figure = draw_members(summary)
    draw(figure)
    axes = figure.axes[1]
    np.testing.assert_array_equal(line(axes, "members").get_xydata(), [[0, 0.5], [2, 0.25]])
    assert "members 0.3750 ± 0.1768 (1 infinite, not drawn)" in left_title(axes)


def test_an_infinite_ensemble_is_written_but_not_drawn():
    figure = draw_members(section_of(*certain_case(num_wrong=1)))
    draw(figure)
    axes = figure.axes[1]
    assert left_title(axes) == "ensemble inf (2 infinite, not drawn)"
    assert lines(axes, "ensemble") == []


# Uncertain examples.


def images(num_examples, channels=1, dtype=np.uint8):
    """Images that differ, with 0 and 16 as the extremes of the whole set."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 17, size=(num_examples, 8, 8, channels)).astype(dtype)
    drawn[0, 0, 0], drawn[-1, 0, 1] = 0, 16
    return drawn


def names(log_probs):
    return [f"class {k}" for k in range(log_probs.shape[-1])]


def shown_images(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def test_uncertain_examples_are_those_of_highest_entropy(case):
    log_probs, labels = case
    inputs = images(len(labels))
    figure = examples.uncertain_examples(
        inputs.__getitem__, log_probs, labels, names(log_probs), count=5
    )
    draw(figure)
    probs = np.exp(log_probs.astype(float)).mean(axis=0)
    entropies = scipy.stats.entropy(probs, axis=-1)
    ranked = sorted(range(len(labels)), key=lambda n: -round(entropies[n], 9))[:5]
    shown = shown_images(figure)
    assert len(shown) == min(5, len(labels))
    np.testing.assert_allclose(np.stack(shown), inputs[ranked, ..., 0] / 16, atol=1e-7)


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_three_channels_are_colours_and_others_are_averaged(channels):
    log_probs, labels = random_case(num_examples=1)
    inputs = images(1, channels, np.float32)
    figure = examples.uncertain_examples(inputs.__getitem__, log_probs, labels, names(log_probs))
    draw(figure)
    expected = inputs[0] / 16 if channels == 3 else inputs[0].mean(axis=-1) / 16
    np.testing.assert_allclose(shown_images(figure)[0], expected, atol=1e-7)


def test_uncertain_examples_are_captioned_with_label_and_two_best_classes():
    log_probs = np.log([[[0.5, 0.3, 0.2], [0.3, 0.3, 0.4]]])
    figure = examples.uncertain_examples(
        images(2).__getitem__, log_probs, np.array([1, 2]), ["a$_$", "b", "c"]
    )
    draw(figure)
    least_certain, second = figure.axes
    assert least_certain.get_title() == "true: c\n✓ c (40%)\na$_$ (30%)"
    assert to_hex(least_certain.title.get_color()) == plot_style.RIGHT_COLOR.lower()
    assert second.get_title() == "true: b\n✗ a$_$ (50%)\nb (30%)"
    assert to_hex(second.title.get_color()) == plot_style.WRONG_COLOR.lower()
    assert figure.get_suptitle() == "2 least certain examples of 2"


def test_long_class_names_keep_both_ends():
    log_probs, labels = random_case(num_examples=1, num_classes=2)
    long_names = ["a very long name of an animal, the first", "another one of these, the second"]
    figure = examples.uncertain_examples(images(1).__getitem__, log_probs, labels, long_names)
    name = long_names[labels[0]]
    assert f"true: {name[:10]}…{name[-10:]}\n" in figure.axes[0].get_title()


def test_count_limits_the_examples():
    log_probs, labels = random_case()
    figure = examples.uncertain_examples(
        images(400).__getitem__, log_probs, labels, names(log_probs), count=6
    )
    draw(figure)
    assert len(shown_images(figure)) == 6
    all_shown = shown_images(
        examples.uncertain_examples(images(400).__getitem__, log_probs, labels, names(log_probs))
    )
    assert len(all_shown) == 16
    np.testing.assert_array_equal(shown_images(figure), all_shown[:6])


def test_brightness_is_scaled_over_the_whole_set():
    log_probs, labels = random_case(num_examples=3)
    inputs = np.stack([np.full((4, 4, 3), value) for value in (-2.0, 0.0, 2.0)])
    figure = examples.uncertain_examples(inputs.__getitem__, log_probs, labels, names(log_probs))
    draw(figure)
    assert sorted(float(image.mean()) for image in shown_images(figure)) == [0.0, 0.5, 1.0]


def test_blank_images_can_be_drawn():
    log_probs, labels = random_case(num_examples=3)
    inputs = np.full((3, 8, 8, 1), 7, np.uint8)
    draw(examples.uncertain_examples(inputs.__getitem__, log_probs, labels, names(log_probs)))


def test_inputs_that_are_no_images_are_refused():
    log_probs, labels = random_case(num_examples=3)
    with pytest.raises(ValueError, match=r"\(3, 8\), must be images \[N, H, W, C\]"):
        examples.uncertain_examples(
            np.zeros((3, 8)).__getitem__, log_probs, labels, names(log_probs)
        )


# Learning curves.


def training_records(num_members=3, num_epochs=4, steps_per_epoch=5):
    """Records as a run writes them: training every step, validation every epoch."""
    records = []
    for step in range(1, num_epochs * steps_per_epoch + 1):
        record = {"step": step, "epoch": step / steps_per_epoch, "train/learning_rate": 0.1}
        for k in range(num_members):
            record[f"train/member_{k:02d}/loss"] = 2.0 / step + 0.01 * k
            record[f"train/member_{k:02d}/accuracy"] = 0.5
        records.append(record)
        if step % steps_per_epoch == 0:
            record = {"step": step, "epoch": step / steps_per_epoch}
            for k in range(num_members):
                record[f"validation/member_{k:02d}/nll"] = 1.0 / step + 0.02 * k
                record[f"validation/member_{k:02d}/accuracy"] = 1 - 0.5 / step - 0.01 * k
            record["validation/ensemble/nll"] = 0.9 / step
            record["validation/ensemble/accuracy"] = 1 - 0.4 / step
            records.append(record)
    return records


PANELS = of_classes(["no", "yes"]).curves()


def test_training_curves_plot_the_records():
    figure = curves.training_curves(training_records(), PANELS)
    draw(figure)
    loss, nll, accuracy = figure.axes
    steps, epochs = np.arange(1, 21), np.arange(1, 5)
    assert [left_title(axes).split(" (")[0] for axes in figure.axes] == [
        "Training loss",
        "Validation NLL",
        "Validation accuracy",
    ]
    for k in range(3):
        member_loss = lines(loss, "members")[k].get_xydata()
        np.testing.assert_allclose(member_loss, np.c_[steps / 5, 2 / steps + 0.01 * k])
        member_nll = lines(nll, "members")[k].get_xydata()
        np.testing.assert_allclose(member_nll, np.c_[epochs, 0.2 / epochs + 0.02 * k])
        member_accuracy = lines(accuracy, "members")[k].get_xydata()
        np.testing.assert_allclose(member_accuracy, np.c_[epochs, 1 - 0.1 / epochs - 0.01 * k])
    np.testing.assert_allclose(line(nll, "ensemble").get_xydata(), np.c_[epochs, 0.18 / epochs])
    np.testing.assert_allclose(
        line(accuracy, "ensemble").get_xydata(), np.c_[epochs, 1 - 0.08 / epochs]
    )
    assert line(nll, "ensemble").get_linewidth() > lines(nll, "members")[0].get_linewidth()
    assert lines(loss, "ensemble") == []
    assert loss.get_yscale() == "log"  # two decades
    assert nll.get_yscale() == "linear"
    assert {axes.get_xlabel() for axes in figure.axes} == {"epoch"}


def test_a_member_that_failed_ends_at_a_cross():
    records = training_records()
    for record in records:
        if record["epoch"] > 2:
            for key in record:
                if "member_01" in key:
                    record[key] = None if key.startswith("validation") else float("nan")
    figure = curves.training_curves(records, PANELS)
    draw(figure)
    loss, nll, accuracy = figure.axes
    for axes, y in ((loss, 2 / 10 + 0.01), (nll, 1 / 10 + 0.02), (accuracy, 1 - 0.5 / 10 - 0.01)):
        np.testing.assert_allclose(line(axes, "member stopped").get_xydata(), [[2.0, y]])
        assert len(lines(axes, "members")) == 3
        assert strings(axes.get_legend().get_texts()) == ["member stopped"]
        named = ["members"] if axes is loss else ["ensemble", "members"]
        assert sorted(strings(axes.texts)) == named


def test_a_member_that_is_no_longer_recorded_ends_at_a_cross():
    records = [
        {key: value for key, value in record.items() if record["epoch"] <= 2 or "_01" not in key}
        for record in training_records()
    ]
    figure = curves.training_curves(records, PANELS)
    draw(figure)
    np.testing.assert_allclose(line(figure.axes[1], "member stopped").get_xdata(), [2.0])


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"step": 1}],
        [{"epoch": 1.0, "train/member_00/loss": float("nan")}],
        [{"train/member_00/loss": 1.0}],
    ],
)
def test_nothing_recorded_is_said(records):
    figure = curves.training_curves(records, PANELS)
    draw(figure)
    for axes in figure.axes:
        assert strings(axes.texts) == ["not recorded"]


def test_records_without_epochs_are_drawn_against_steps():
    records = [
        {key: value for key, value in record.items() if key != "epoch"}
        for record in training_records()
    ]
    figure = curves.training_curves(records, PANELS)
    draw(figure)
    np.testing.assert_array_equal(line(figure.axes[1], "ensemble").get_xdata(), [5, 10, 15, 20])
    assert {axes.get_xlabel() for axes in figure.axes} == {"step"}


@pytest.mark.parametrize("num_members", [1, 150])
def test_single_points_and_many_members_are_drawn(num_members):
    records = training_records(num_members, num_epochs=1, steps_per_epoch=1)
    figure = curves.training_curves(records, PANELS)
    draw(figure)
    assert len(lines(figure.axes[0], "members")) == num_members
    assert line(figure.axes[1], "ensemble").get_marker() == "."  # a line of one point is nothing


# Entropies.


def test_entropy_histogram_splits_right_from_wrong(case):
    log_probs, labels = case
    figure = uncertainty.entropy_histogram(log_probs, labels)
    draw(figure)
    probs = np.exp(log_probs.astype(float)).mean(axis=0)
    entropies = scipy.stats.entropy(probs, axis=-1)
    right = metrics.ensemble_log_probs(log_probs).argmax(axis=-1) == labels
    for axes, name, chosen in zip(
        figure.axes, ("right", "wrong"), (entropies[right], entropies[~right]), strict=True
    ):
        plural = "s" if len(chosen) != 1 else ""
        assert left_title(axes).startswith(f"{len(chosen)} {name} prediction{plural}")
        assert sum(heights(axes)) == len(chosen)
        if len(chosen) > 0:
            (median,) = axes.get_lines()
            np.testing.assert_allclose(median.get_xdata(), np.median(chosen), atol=1e-9)
            assert f"median entropy {np.median(chosen):.3f} nats" in left_title(axes)


def test_entropy_histogram_bins_by_hand():
    uniform, certain = [0.25] * 4, [1 - 3e-9, 1e-9, 1e-9, 1e-9]
    log_probs = np.log([[uniform, certain, certain]])
    upper, lower = uncertainty.entropy_histogram(log_probs, np.array([0, 0, 1])).axes
    assert heights(upper) == [1] + [0] * 28 + [1]
    assert heights(lower) == [1] + [0] * 29
    assert upper.get_xlim() == (0, np.log(4))


def test_names_at_the_ends_of_lines_keep_a_distance_and_the_order():
    figure = plot_style.new_figure("", 4, 3)
    axes = figure.subplots()
    ends = {"low": 0.0, "a": 99.0, "b": 99.5, "c": 100.0, "none": np.nan}
    for value in ends.values():
        axes.plot([0, 1], [50, value])
    plot_style.label_ends(axes, {name: (value, "k") for name, value in ends.items()})
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert list(heights) == ["low", "a", "b", "c"]
    assert np.diff(list(heights.values())).min() > 0.05
    assert max(heights.values()) <= 1
    bottom, top = axes.get_ylim()
    assert heights["low"] == pytest.approx(-bottom / (top - bottom))


def test_dots_are_of_each_pair_of_members():
    matrix = [[0, 0.1, 0.2], [0.1, 0, 0.4], [0.2, 0.4, 0]]
    figure = member_scores.disagreement_dots(matrix, [0, 2, 5], "member")
    draw(figure)
    (axes,) = figure.axes
    np.testing.assert_allclose(
        line(axes, "a pair").get_xydata(),
        [[0, 0.1], [0, 0.2], [1, 0.1], [1, 0.4], [2, 0.2], [2, 0.4]],
    )
    np.testing.assert_allclose(line(axes, "mean of the member").get_ydata(), [0.15, 0.25, 0.3])
    assert strings(axes.get_xticklabels()) == ["0", "2", "5"]
