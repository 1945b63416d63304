"""Intervals of differences: against formulas, and by what they must not depend on."""

import numpy as np
import pytest
from scipy import stats

from ensemble.metrics import jackknife


def make_pair(rng, members=(5, 4), num_examples=400, main=0.5):
    """Terms of two ensembles whose scores are plain means over members: a two-way layout."""
    found = []
    for num in members:
        terms = main * rng.normal(size=(num, 1)) + rng.normal(size=(num, num_examples))
        less = (terms.sum(axis=0) - terms) / (num - 1)
        found.append(jackknife.LeaveOneOut(terms.mean(axis=0), less))
    return found


def test_the_variance_of_means_over_members_is_taken_apart():
    """The members' part is S^2 / M, less what differs from example to example."""
    rng = np.random.default_rng(0)
    found = [jackknife.two_way(*make_pair(rng, num_examples=50)).of_members for _ in range(600)]
    assert np.mean(found, axis=0) == pytest.approx([0.25 / 5, 0.25 / 4], rel=0.15)


def test_with_members_that_are_alike_the_interval_is_the_paired_one():
    rng = np.random.default_rng(1)
    ours, theirs = (
        jackknife.LeaveOneOut(one, np.tile(one, (3, 1))) for one in rng.normal(size=(2, 50))
    )
    low, high = jackknife.two_way_interval(jackknife.two_way(ours, theirs))
    expected = stats.ttest_rel(theirs.whole, ours.whole).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_a_mean_on_which_few_examples_decide_is_known_worse():
    rng = np.random.default_rng(2)
    values = rng.normal(size=200)
    low, high = jackknife.mean_difference_interval(np.zeros(200), values)
    plain = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    assert (low, high) == pytest.approx(plain, abs=2e-3)
    values[0] = 100
    low, high = jackknife.mean_difference_interval(np.zeros(200), values)
    assert high - low > 2 * 2 * 1.96 * stats.sem(values)


def test_infinite_terms_have_no_interval():
    terms = np.array([0.0, np.inf])
    assert jackknife.mean_difference_interval(terms, terms) is None
    assert jackknife.mean_difference_interval(np.zeros(2), terms) is None


def test_shares_that_never_differ_have_an_interval_all_the_same():
    hits = np.ones(98, bool)
    low, high = jackknife.share_difference_interval(hits, hits)
    assert (low, high) == pytest.approx((-0.0277, 0.0277), abs=1e-4)  # 1.96 sqrt(2) / 100.


@pytest.mark.parametrize("part", ["examples", "members"])
def test_what_is_needed_is_enough(part):
    """With so many more of one, or of both, the error is what a difference takes."""
    found = jackknife.TwoWay(0.0, 4e-4, (3e-4, 1e-4), 500, (4, 4))
    need = jackknife.needed(found, 0.07)
    wanted = (0.07 / (stats.norm.ppf(0.975) + stats.norm.ppf(0.8))) ** 2
    assert found.error**2 / need.times == pytest.approx(wanted)
    error = {
        "examples": 4e-4 * 500 / need.examples + 4e-4,
        "members": 4e-4 + 4e-4 * 4 / need.members,
    }[part]
    assert wanted * 0.9 < error <= wanted
    none = jackknife.needed(found, 0.03)
    assert none[:2] == (None, None)
    assert none.times > 1
