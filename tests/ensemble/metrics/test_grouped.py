"""Intervals over groups, of which the rows of one may be alike."""

import numpy as np
import pytest
import scipy.stats

from ensemble.metrics.grouped import group_interval, group_terms, mean_over_groups


def mean_of(values):
    return lambda counts: float(values @ counts / counts.sum())


def test_the_interval_is_about_that_of_the_means_of_groups():
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=400), np.repeat(np.arange(40), 10)
    low, high = group_interval(mean_of(values), groups, "signed")
    means = values.reshape(40, 10).mean(axis=1)
    expected = scipy.stats.t.interval(0.95, 38, means.mean(), scipy.stats.sem(means))
    assert (low + high) / 2 == pytest.approx(means.mean())
    assert high - low == pytest.approx((expected[1] - expected[0]) * (1 + 1.5 / 40))


def test_a_share_of_groups_that_are_alike_has_the_interval_of_as_few_examples():
    held = np.repeat(np.array([1, 1, 1, 0] * 5), 10)
    groups = np.repeat(np.arange(20), 10)
    found = group_interval(mean_of(held), groups, "share")
    expected = scipy.stats.binomtest(15, 20).proportion_ci(0.95)
    np.testing.assert_allclose(found, expected, atol=0.06)
    low, high = group_interval(lambda _: 1.0, groups, "share")
    assert low == pytest.approx(0.025 ** (1 / 20))
    assert high == 1


def test_few_groups_say_nothing_of_others_and_many_are_put_together():
    values = np.random.default_rng(0).normal(size=2000)
    assert group_interval(mean_of(values), np.arange(2000) % 7, "signed") is None
    low, high = group_interval(mean_of(values), np.arange(2000), "signed")
    expected = 2 * 1.96 * values.std() / np.sqrt(2000)
    assert high - low == pytest.approx(expected, rel=0.15)


def test_terms_of_groups_have_the_mean_of_those_of_examples():
    groups = np.array(["b", "a", "b", "c", "b"])
    found = group_terms([[1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 0.0, 0.0, 0.0]], groups)
    np.testing.assert_allclose(found, np.array([[2.0, 9.0, 4.0], [1.0, 0.0, 0.0]]) * 3 / 5)
    np.testing.assert_allclose(found.mean(axis=1), [3.0, 0.2])


def test_a_mean_over_groups_may_be_negative_and_is_none_of_few():
    values, groups = np.repeat(np.linspace(-2, 1, 20), 5), np.repeat(np.arange(20), 5)
    low, high = mean_over_groups(values, groups)
    assert low < -0.5 < high < 0.3
    assert high - low > 3 * 2 * 1.96 * values.std() / 10 / 2
    assert mean_over_groups(values, groups // 4) is None
    assert mean_over_groups(np.full(100, np.inf), groups) is None
