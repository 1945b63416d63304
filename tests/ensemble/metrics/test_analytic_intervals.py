"""Intervals by formula: known limits. How often they hold is simulated in simulations/."""

import math

import numpy as np
import pytest
import scipy.stats

from ensemble import metrics


@pytest.mark.parametrize("num_examples", [30, 100, 1000])
def test_of_a_plain_share_it_is_that_of_clopper_and_pearson(num_examples):
    for num_right in {0, 1, num_examples // 10, num_examples // 2, num_examples}:
        low, high = metrics.error_interval(num_right, num_examples)
        values = np.arange(num_examples) < num_right
        found = metrics.bounded_interval(values)
        assert found == pytest.approx((low, high), abs=0.05 * (high - low))
        scaled = metrics.bounded_interval(4 * values - 1.0, low=-1, high=3)
        assert scaled == pytest.approx([4 * end - 1 for end in found])


def test_one_example_of_much_weight_makes_it_wide():
    narrow, wide = (metrics.share_interval(1.0, 0.0, weight) for weight in (0.001, 0.1))
    assert narrow[1] == wide[1] == 1
    assert narrow[0] == pytest.approx(1 - 3.69 * 0.001, abs=1e-4)
    assert 0.6 < wide[0] < 0.75


def test_a_mean_of_what_is_not_skewed_has_the_t_interval():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
    expected = scipy.stats.t.interval(0.95, 4, 0, scipy.stats.sem(values))
    assert metrics.mean_interval(values) == pytest.approx(expected)


def test_skewness_moves_an_interval_to_the_long_side_and_keeps_the_scale():
    values = np.random.default_rng(0).exponential(size=50)
    low, high = metrics.mean_interval(values)
    plain = scipy.stats.t.interval(0.95, 49, values.mean(), scipy.stats.sem(values))
    assert low > plain[0]
    assert high > plain[1]
    assert metrics.mean_interval(-3 * values) == pytest.approx((-3 * high, -3 * low))


def test_means_that_do_not_vary_or_are_infinite():
    assert metrics.mean_interval(np.full(9, 0.1)) == pytest.approx((0.1, 0.1))
    assert metrics.mean_interval([2.0]) == (2, 2)
    assert metrics.mean_interval([1.0, math.inf]) == (-math.inf, math.inf)


def test_so_many_examples_show_a_difference_in_four_of_five_cases():
    """(1.960 + .842)^2 = 7.85 variances, by the squared difference."""
    interval = (-1.96 * 0.1, 1.96 * 0.1)  # A standard deviation of 1 over 100 examples.
    assert metrics.num_to_see(0.1, interval, 100) == pytest.approx(785, abs=1)
    assert metrics.num_to_see(0.2, interval, 100) == pytest.approx(785 / 4, abs=1)
