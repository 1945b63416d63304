"""Popularity and biases against SciPy's maximum, hand-worked cases and the planted truth."""

import numpy as np
import pytest
import scipy.optimize

from ensemble.recommendation import baselines, movielens, ranking


def test_popularity_is_laplaces_rule():
    observed = np.array([[1, 0, 2, 1], [1, 0, 1, 0], [1, 2, 2, 0]], np.uint8)
    p = 1 / (1 + np.exp(-baselines.fit_popularity(observed)))
    np.testing.assert_allclose(p, [4 / 5, 1 / 4, 2 / 3, 2 / 5], rtol=1e-12)


def negative_log_density(position, observed):
    """Minus the log joint density, and its gradient, written out over all entries."""
    user_bias, movie_bias = np.split(position, [len(observed)])
    logits = user_bias[:, None] + movie_bias
    known = observed != 2
    value = np.sum(known * (np.logaddexp(0, logits) - (observed == 1) * logits))
    slopes = known * (1 / (1 + np.exp(-logits)) - (observed == 1))
    gradient = np.concatenate([slopes.sum(axis=1), slopes.sum(axis=0)]) + position
    return value + position @ position / 2, gradient


@pytest.mark.parametrize("shape", [(50, 30), (3, 2), (1, 7)])
def test_biases_are_the_map(shape, monkeypatch):
    """The gradient vanishes there, and SciPy finds the same; few sweeps are enough."""
    monkeypatch.setattr(baselines, "_MAX_SWEEPS", 20)
    observed = np.random.default_rng(0).choice(3, shape, p=[0.7, 0.2, 0.1]).astype(np.uint8)
    user_bias, movie_bias = baselines.fit_biases(observed)
    position = np.concatenate([user_bias, movie_bias])
    assert position.dtype == np.float64
    assert abs(negative_log_density(position, observed)[1]).max() < 1e-6

    found = scipy.optimize.minimize(
        negative_log_density, np.zeros(sum(shape)), (observed,), jac=True, tol=1e-10
    )
    np.testing.assert_allclose(position, found.x, atol=1e-4)


@pytest.mark.parametrize("value", [0, 1])
def test_biases_of_a_constant_matrix_are_finite(value):
    observed = np.full((40, 30), value, np.uint8)
    observed[0, 0] = 2
    position = np.concatenate(baselines.fit_biases(observed))
    assert abs(negative_log_density(position, observed)[1]).max() < 1e-6


def test_baselines_rank_below_the_truth_and_above_chance():
    watches = movielens.generate_watches("watches:400x300")
    observed, (pairs, labels) = movielens.hold_out(watches, seed=0)
    popularity = baselines.fit_popularity(observed)
    user_bias, movie_bias = baselines.fit_biases(observed)
    users, movies = pairs.T
    p = watches.truth.probabilities(slice(None)).astype(float)
    aucs = [
        ranking.auc(popularity[movies], labels),
        ranking.auc(user_bias[users] + movie_bias[movies], labels),
        ranking.auc(p[users, movies], labels),
    ]
    assert 0.6 < min(aucs[:2]) < max(aucs[:2]) < aucs[2] - 0.05

    relevant = pairs[labels == 1]
    everybody = np.tile(popularity, (400, 1))
    recalls = [ranking.recalls(scores, observed == 1, relevant).mean() for scores in (everybody, p)]
    assert 20 / 300 < recalls[0] < recalls[1] - 0.05
