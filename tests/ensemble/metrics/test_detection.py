"""Detection scores against scikit-learn, ties and infinities included."""

import numpy as np
import pytest
import sklearn.metrics

from ensemble import metrics


def scikit_learn(scores_in, scores_out):
    is_out = np.repeat([0, 1], [len(scores_in), len(scores_out)])
    both = np.concatenate([scores_in, scores_out])
    false_rate, true_rate, _ = sklearn.metrics.roc_curve(is_out, both, drop_intermediate=False)
    return {
        "auroc": sklearn.metrics.roc_auc_score(is_out, both),
        "aupr": sklearn.metrics.average_precision_score(is_out, both),
        "fpr95": false_rate[np.argmax(true_rate >= 0.95)],
    }


@pytest.mark.parametrize("sizes", [(200, 100), (3, 400), (1, 1), (50, 20)])
@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_scores_match_scikit_learn(sizes, decimals):
    rng = np.random.default_rng(sum(sizes))
    sides = [rng.normal(size=sizes[0]), rng.normal(1.0, size=sizes[1])]
    if decimals is not None:
        sides = [np.round(side, decimals) for side in sides]  # Ties within and across.
    assert metrics.detection_scores(*sides) == pytest.approx(scikit_learn(*sides), rel=1e-12)


def test_auroc_is_the_probability_of_the_higher_score():
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 5, 40), rng.integers(2, 7, 30)
    wins = (high[:, None] > low).mean() + 0.5 * (high[:, None] == low).mean()
    assert metrics.detection_scores(low, high)["auroc"] == pytest.approx(wins, rel=1e-12)


def test_perfect_useless_and_reversed_scores():
    low, high = np.zeros(4), np.ones(6)
    assert metrics.detection_scores(low, high) == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}
    assert metrics.detection_scores(low, low)["auroc"] == 0.5
    assert metrics.detection_scores(low, low)["fpr95"] == 1.0
    assert metrics.detection_scores(high, low)["auroc"] == 0.0


def test_a_resample_scores_as_its_examples_do():
    rng = np.random.default_rng(0)
    sides = np.round(rng.normal(size=50), 1), np.round(rng.normal(0.5, size=30), 1)
    counts = rng.integers(0, 3, 80)
    repeated = [np.repeat(s, c) for s, c in zip(sides, np.split(counts, [50]), strict=True)]
    ours = metrics.rank(*sides).scores(counts)
    assert ours == pytest.approx(metrics.detection_scores(*repeated), rel=1e-12)


def test_an_interval_covers_the_known_auroc():
    """For N(0, 1) against N(1, 1) the AUROC is Phi(1 / sqrt 2) = .7602."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(100):
        ranked = metrics.rank(rng.normal(size=150), rng.normal(1.0, size=100))
        low, high = ranked.intervals()["auroc"]
        covered.append(low <= 0.7602 <= high)
    assert np.mean(covered) > 0.88
    assert high - low < 0.16


def test_intervals_of_ties_are_about_those_of_a_bootstrap():
    rng = np.random.default_rng(0)
    ranked = metrics.rank(rng.integers(5, size=300), rng.integers(1, 6, size=200))
    low, high = metrics.intervals(ranked.scores, 300, 200)["auroc"]
    assert ranked.intervals()["auroc"] == pytest.approx((low, high), abs=0.08 * (high - low))


def test_intervals_of_sides_that_are_apart_are_no_points():
    few, many = (metrics.rank(np.arange(500.0), 1000 + np.arange(n)) for n in (20, 300))
    low, high = many.intervals()["auroc"]
    assert 0.98 < low < 0.99
    assert high == pytest.approx(1)
    assert many.intervals()["fpr95"] == (0, pytest.approx(0.0081, abs=0.002))
    assert few.intervals()["fpr95"] == (0, 1)  # 95% of 20 lie below no threshold for sure.


def test_order_of_examples_changes_nothing():
    rng = np.random.default_rng(0)
    sides = [np.round(rng.normal(size=50), 1), np.round(rng.normal(0.5, size=30), 1)]
    permuted = [rng.permutation(side) for side in sides]
    assert metrics.detection_scores(*sides) == metrics.detection_scores(*permuted)


@pytest.mark.parametrize("bad", [[], [np.nan], [[1.0]]])
def test_bad_scores_are_refused(bad):
    with pytest.raises(ValueError, match=r"scores_out of shape .* must be \[N\]"):
        metrics.detection_scores([1.0], bad)
