"""Intervals over groups, of which the rows of one may be alike."""

import numpy as np
import pytest
import scipy.stats

from ensemble.metrics.grouped import group_intervals


def mean_of(values):
    return lambda counts: {"nll": float(values @ counts / counts.sum())}


def test_the_interval_is_about_that_of_the_means_of_groups():
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=400), np.repeat(np.arange(40), 10)
    low, high = group_intervals(mean_of(values), groups)["nll"]
    means = values.reshape(40, 10).mean(axis=1)
    expected = scipy.stats.t.interval(0.95, 38, means.mean(), scipy.stats.sem(means))
    assert (low + high) / 2 == pytest.approx(means.mean())
    assert high - low == pytest.approx((expected[1] - expected[0]) * (1 + 1.5 / 40))


def test_a_share_of_groups_that_are_alike_has_the_interval_of_as_few_examples():
    held = np.repeat(np.array([1, 1, 1, 0] * 5), 10)
    found = group_intervals(
        lambda counts: {"coverage": held @ counts / counts.sum()}, np.repeat(np.arange(20), 10)
    )["coverage"]
    expected = scipy.stats.binomtest(15, 20).proportion_ci(0.95)
    np.testing.assert_allclose(found, expected, atol=0.06)
    low, high = group_intervals(lambda _: {"coverage": 1.0}, np.repeat(np.arange(20), 10))[
        "coverage"
    ]
    assert low == pytest.approx(0.025 ** (1 / 20))
    assert high == 1


def test_few_groups_say_nothing_of_others_and_many_are_put_together():
    values = np.random.default_rng(0).normal(size=2000)
    assert group_intervals(mean_of(values), np.arange(2000) % 7) == {"nll": None}
    low, high = group_intervals(mean_of(values), np.arange(2000))["nll"]
    expected = 2 * 1.96 * values.std() / np.sqrt(2000)
    assert high - low == pytest.approx(expected, rel=0.15)
