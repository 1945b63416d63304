"""Charts show the numbers that they claim to show, and draw for any data."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from evaluations import KINDS, RECORDS, classes, images

from ensemble.metrics import METRICS, functions
from ensemble.report import charts, plots
from ensemble.report.evaluation import Evaluation
from ensemble.report.svg import Axis, Chart, image, span, ticks


def marks(chart, shape, kind):
    return [one for one in chart.marks if (one.shape, one.kind) == (shape, kind)]


def normal(num_chains=4, num_draws=1000, seed=0):
    return np.random.default_rng(seed).normal(size=(num_chains, num_draws))


@pytest.mark.parametrize("ends", [(0, 1), (-3.2, 17), (1e-9, 1.1e-9), (0, 4e6), (-1e-3, 0)])
def test_ticks_are_a_few_round_numbers_inside(ends):
    found = ticks(*ends)
    assert 3 <= len(found) <= 8
    assert ends[0] <= found[0] + 1e-15
    assert found[-1] <= ends[1] + 1e-15
    np.testing.assert_allclose(np.diff(found), found[1] - found[0])


def test_values_that_are_not_finite_or_alike_have_a_range():
    assert span([[np.nan, np.inf]]) == pytest.approx((-0.08, 1.08))
    for value in (0, 5, -1e9):
        low, high = span([[value, value]])
        assert low < value < high


def test_calibration_shows_the_bins():
    evaluation = Evaluation(*classes(500))
    chart = charts.calibration(evaluation)
    places = np.ceil(evaluation.test.confidence * 10)
    filled = np.unique(places)
    hit = functions.accuracy(evaluation.test, evaluation.y)
    (line,) = marks(chart, "line", "ours")
    np.testing.assert_allclose(line.ys, [hit[places == one].mean() for one in filled])
    assert (np.ceil(line.xs * 10) == filled).all()


@pytest.mark.parametrize("kind", ["student_t", "quantiles"])
def test_calibration_of_numbers_shows_targets_below_quantiles(kind):
    evaluation = KINDS[kind]()
    (line,) = marks(charts.calibration(evaluation), "line", "ours")
    below = evaluation.y[:, None] <= evaluation.test.quantiles(line.xs)
    np.testing.assert_allclose(line.ys, below.mean(axis=0), atol=0.01)


def test_the_abstention_curve_ends_at_the_score_of_all():
    evaluation = Evaluation(*classes(500))
    (line,) = marks(charts.abstention(evaluation), "line", "ours")
    assert line.ys[-1] == pytest.approx(evaluation.whole["accuracy"].value)


def test_sizes_end_at_the_ensemble_and_begin_at_the_members():
    evaluation = images()
    _, chart = charts.sizes(evaluation)
    (line,) = marks(chart, "line", "ours")
    assert line.ys[-1] == pytest.approx(evaluation.whole["nll"].value)
    (dots,) = marks(chart, "dots", "single")
    assert line.ys[0] == pytest.approx(dots.ys.mean())


# Training.


def test_learning_curves_have_a_line_for_each_member_and_the_ensemble():
    stopped = {**RECORDS[0], "step": 60, "epoch": 6.0, "train/member_00/loss": 1e40}
    stopped |= {"failed_members": [0], "members": [2, 3]}
    records = [*RECORDS, {"step": 50}, stopped]
    loss, nll = charts.learning_curves(records, {"nll": METRICS["classes"]["nll"]})
    assert loss.y.label == "train loss"
    assert len(marks(loss, "line", "each")) == 3
    assert [len(one.xs) for one in marks(loss, "line", "each")] == [4, 5, 5]  # 1e40 is not drawn.
    assert nll.y.label == "validation NLL"
    (line,) = marks(nll, "line", "ours")
    np.testing.assert_allclose(line.ys[:4], 1.5 / np.arange(10, 50, 10))
    assert nll.x.label == "epoch"


def test_long_curves_are_thinned():
    records = [{"step": t, "train/member_00/loss": 1.0} for t in range(1, 10_001)]
    (chart,) = charts.learning_curves(records, {})
    assert sum(len(one.xs) for one in marks(chart, "line", "each")) <= 2000
    assert chart.x.label == "step"


def test_without_records_there_are_no_curves():
    assert charts.learning_curves([], {}) == []
    nothing = [{"step": 1, "train/member_00/loss": float("nan")}]
    assert charts.learning_curves(nothing, {}) == []


# Chains.


def test_traces_fit_what_follows_the_warmup():
    values = normal(2, 3000) - 16_000
    values[:, :100] = 1e6
    (chart,) = charts.traces({"log_density": values}, 400)
    assert -16_010 < chart.y.ends[0] < chart.y.ends[1] < -15_990
    first, second = (marks(chart, "line", f"chain-{k}")[0] for k in (0, 1))
    assert len(first.xs) == len(second.xs) <= 510
    assert len(marks(chart, "area", "count")) == 1


@pytest.mark.parametrize(
    "values",
    [
        normal(1, 1),
        np.zeros((2, 30)),
        np.full((2, 30), np.nan),
        np.where(np.arange(30) == 3, -np.inf, normal(2, 30)),
        normal(150, 10),
        normal(2, 30) > 0,
    ],
    ids=["one", "zero", "nan", "infinite", "many", "bool"],
)
def test_any_traces_are_drawn(values):
    for num_warmup in (0, 20):
        (chart,) = charts.traces({"x": values}, num_warmup, "x", "y")
        assert chart.svg()


# Drawing.


@pytest.mark.check
@pytest.mark.parametrize("kind", KINDS)
def test_any_plots_are_drawn(kind):
    for panels in plots.figures(KINDS[kind]()).values():
        pixels = plots.pixels(panels)
        assert pixels.dtype == np.uint8
        assert pixels.std() > 0
        assert tuple(pixels[0, 0]) == (255, 255, 255)


def test_images_are_small_whatever_they_are():
    rng = np.random.default_rng(0)
    for shape in ((8, 8, 1), (28, 28, 3), (224, 224, 3), (16, 16, 4), (500, 20, 1)):
        url = image(rng.random(shape) * 255, 0, 255)
        assert url.startswith("data:image/")
        assert len(url) < 8_000


def test_a_chart_without_values_is_drawn():
    chart = Chart("nothing", Axis(), Axis("<y>"))
    chart.add("line", "ours", [0, 1], [np.nan, np.nan])
    assert "&lt;y&gt;" in chart.svg()
    assert "nan" not in chart.svg()


@pytest.mark.check
def test_matplotlib_is_imported_late_and_pyplot_never():
    program = """
import sys
from ensemble.report import charts, plots
assert "matplotlib" not in sys.modules, "imported at start"
axis = charts.Axis("a", (0, 1))
plots.png([charts.Chart("titles", axis, axis)])
assert "matplotlib.pyplot" not in sys.modules, "pyplot keeps global state"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
