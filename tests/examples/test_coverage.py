"""Where intervals hold what they say: what was found is told right, and a posterior holds 90%."""

import json

import numpy as np
import pytest

from ensemble.pictures.plot_style import figure_to_array
from ensemble.storage.schema import to_json
from examples.coverage import intervals, known_truth
from examples.coverage.blocks import Learned, learn
from examples.coverage.fits import NETWORK, NUM_HELD_OUT, POSTERIOR, Fit, Job
from examples.coverage.intervals import CONFORMAL, METHODS, PLAIN, POINTS, REGIONS

IS_GAP = np.abs(POINTS) < known_truth.GAP - 1e-6
NUM_POINTS, NORMAL_95 = len(POINTS), 1.6448536


def make_learned(rng, factor=1.0, num_data_sets=100, shift=0.0):
    """Data sets of noise alone, to which every method says a normal of `factor` times its scale.

    In the gap the truth is moved, where no data tell of it.
    """
    loc = np.where(np.abs(POINTS) < known_truth.GAP - 1e-6, shift, 0.0)[None].repeat(
        num_data_sets, 0
    )
    targets = rng.normal(size=(num_data_sets, known_truth.NUM_EXAMPLES))
    curve = known_truth.Curve(np.sort(targets), targets, {"loc": loc, "scale": np.ones_like(loc)})
    ends = factor * np.array([-NORMAL_95, 0, NORMAL_95])[:, None, None]
    ends = np.broadcast_to(ends, (3, num_data_sets, NUM_POINTS + NUM_HELD_OUT))
    trace = rng.normal(size=(num_data_sets, 4, 100, 3))
    zeros = np.zeros(num_data_sets, int)
    return Learned(Fit(curve, {}, zeros, trace, zeros), dict.fromkeys(METHODS, ends))


def test_regions_are_means_over_evenly_spread_inputs():
    values = {"inside": (0.3 + 1) / 2, "gap": 0.15, "beyond": 1.25}
    found = {name: weights @ np.abs(POINTS) for name, weights in REGIONS.items()}
    assert found == pytest.approx(values)


@pytest.mark.check
def test_conformal_mends_the_average_and_not_the_gap():
    rng = np.random.default_rng(0)
    whole, split = make_learned(rng, 0.5, shift=3.0), make_learned(rng, 0.5)
    found = intervals._find(whole, split)
    plain, conformal = (found.coverage[NETWORK, one] for one in (PLAIN, CONFORMAL))
    np.testing.assert_allclose(plain[:, ~IS_GAP].mean(), 0.589, atol=1e-3)  # P(|z| < 1.645 / 2).
    np.testing.assert_allclose(conformal[:, ~IS_GAP].mean(), 0.9, atol=0.02)
    assert conformal[:, IS_GAP].mean() < 0.25
    np.testing.assert_allclose(found.width[NETWORK, PLAIN], NORMAL_95)


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    made = [make_learned(rng, factor, 20, 2.0) for factor in (1.0, 0.5)]
    made[1].fit.trace[3, 0] += 5.0  # A chain elsewhere.
    one = intervals._find(*made)
    return dict.fromkeys(known_truth.TRUTHS, one)


def test_the_report_has_every_number_and_the_table_reads_them(found):
    content = json.loads(to_json(intervals.report(found, seed=7)))
    assert content["num_data_sets"] == 20
    assert content["interval_over"] == "data sets"
    part = content["truths"][known_truth.WAVES]["methods"][POSTERIOR][PLAIN]
    for region, weights in REGIONS.items():
        one = part["regions"][region]
        expected = found[known_truth.WAVES].coverage[POSTERIOR, PLAIN].mean(axis=0) @ weights
        assert one["coverage"] == pytest.approx(expected)
        low, high = one["interval"]
        assert low - 1e-9 <= one["coverage"] <= high + 1e-9
    assert len(part["by_point"]["low"]) == NUM_POINTS
    table = intervals.text(content)
    assert table.count("90.0% [90.0, 90.0]  3.29") == 12  # Plain: inside and beyond.
    assert "with a 95% interval over the 20 data sets" in table
    assert "Chains disagree (R-hat above 1.1) in 1 of 40 posteriors, which count" in table


def test_members_that_failed_are_told(found):
    one = next(iter(found.values()))._replace(num_failed=3)
    table = intervals.text(intervals.report({known_truth.FROM_PRIOR: one}, 0))
    assert "3 members were not finite" in table


def test_the_picture_has_a_column_for_each_method(found):
    figure = intervals.draw(found, intervals.report(found, seed=0))
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == list(
        intervals.NAMES.values()
    )
    assert all(len(axes.lines) == 2 * 2 + 1 for axes in figure.axes[3:])
    assert figure_to_array(figure).std() > 10


@pytest.mark.soak
def test_a_posterior_holds_90_percent_at_every_input():
    num_data_sets, errors = 2000, 4.0  # Standard errors.
    jobs = [Job(0, number, known_truth.NUM_EXAMPLES) for number in range(num_data_sets)]
    learned = learn(1, jobs, POINTS, np.array(intervals.ENDS), lambda done: None)
    found = intervals._find(learned, learned)
    held = found.coverage[POSTERIOR, PLAIN]
    distance = (held.mean(axis=0) - 0.9) / (held.std(axis=0) / np.sqrt(num_data_sets))
    assert np.abs(distance).max() < errors
    held = found.coverage[NETWORK, PLAIN] @ REGIONS["beyond"]
    assert held.mean() < 0.9 - errors * held.std() / np.sqrt(num_data_sets)
    means = [found.coverage[POSTERIOR, PLAIN].mean(axis=0) @ one for one in REGIONS.values()]
    np.testing.assert_allclose(means, 0.9, atol=0.01)
    assert found.chains["num_above"] < 0.1 * found.chains["num_posteriors"]
