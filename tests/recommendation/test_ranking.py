"""Scores of watch predictions against scikit-learn, SciPy and hand-worked cases."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from ensemble.recommendation import ranking


def test_log_likelihood_is_minus_scikit_learns_log_loss():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 3, 200), rng.integers(0, 2, 200)
    expected = -sklearn.metrics.log_loss(labels, 1 / (1 + np.exp(-logits)))
    log_probs = ranking.watch_log_probs(logits)
    assert ranking.held_out_log_likelihood(log_probs, labels) == pytest.approx(expected, rel=1e-12)


def test_log_probs_of_large_log_odds_are_exact():
    log_probs = ranking.watch_log_probs(np.array([[0.0, 800.0], [-800.0, 40.0]], np.float32))
    half = -np.log(2)
    expected = [[[half, half], [-800, 0]], [[0, -800], [-40, -np.exp(-40)]]]
    np.testing.assert_allclose(log_probs, expected, rtol=1e-12)


def test_draws_are_averaged_as_probabilities():
    logits = np.log([[3.0, 1.0], [1.0, 4.0]])  # p = 3/4, 1/2 and 1/2, 4/5.
    mean = np.logaddexp.reduce(ranking.watch_log_probs(logits), axis=0) - np.log(2)
    np.testing.assert_allclose(np.exp(mean[:, 1]), [0.625, 0.65], rtol=1e-12)
    expected = (np.log(0.625) + np.log(0.35)) / 2
    assert ranking.held_out_log_likelihood(mean, [1, 0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("decimals", [2, 0])
def test_auc_is_scikit_learns_and_mann_whitneys(decimals):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    scores = np.round(rng.normal(labels, 1.0), decimals)  # With ties.
    ours = ranking.auc(scores, labels)
    assert ours == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), rel=1e-12)
    test = scipy.stats.mannwhitneyu(scores[labels == 1], scores[labels == 0])
    sizes = np.bincount(labels)
    assert ours == pytest.approx(test.statistic / sizes.prod(), rel=1e-12)


def test_recall_of_a_hand_worked_case():
    scores = np.array([[9.0, 8, 7, 6, 5], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 2, 3, 4, 5]])
    seen = np.zeros((4, 5), bool)
    seen[0, 0] = seen[1, 4] = True
    # User 0 is recommended 1 and 2, user 1 movies 3 and 2, user 2 movies 0 and 1; 3 has nothing.
    relevant = np.array([[0, 2], [0, 4], [1, 1], [2, 0], [2, 1], [2, 2]])
    recalls = ranking.recalls(scores, seen, relevant, k=2)
    np.testing.assert_allclose(recalls, [1 / 2, 0, 1])  # Three relevant: two found is all of 2.
    np.testing.assert_array_equal(ranking.recalls(scores, seen, relevant, k=20), 1)


def test_recall_agrees_with_a_loop_over_users():
    rng = np.random.default_rng(1)
    shape = (600, 50)
    scores, seen = rng.normal(size=shape), rng.random(shape) < 0.3
    relevant = np.argwhere(~seen & (rng.random(shape) < 0.05))
    expected = []
    for user in np.unique(relevant[:, 0]):
        wanted = set(relevant[relevant[:, 0] == user, 1])
        unseen = [movie for movie in np.argsort(-scores[user]) if not seen[user, movie]]
        expected.append(len(wanted & set(unseen[:5])) / min(5, len(wanted)))
    shuffled = rng.permutation(relevant)
    np.testing.assert_allclose(ranking.recalls(scores, seen, shuffled, k=5), expected)
