"""Popularity and biases against SciPy's maximum, hand-worked cases and the planted truth."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

from ensemble.recommendation import baselines


def test_popularity_is_laplaces_rule():
    observed = np.array([[1, 0, 2, 1], [1, 0, 1, 0], [1, 2, 2, 0]], np.uint8)
    p = 1 / (1 + np.exp(-baselines.fit_popularity(observed)))
    np.testing.assert_allclose(p, [4 / 5, 1 / 4, 2 / 3, 2 / 5], rtol=1e-12)


def make_excess(observed):
    """Weights of watches, from less than 1 to 10, less 1."""
    weights = np.random.default_rng(3).lognormal(0, 1, observed.shape)
    return scipy.sparse.csr_array((weights - 1) * (observed == 1))


def test_a_watch_counts_by_its_weight():
    observed = np.array([[1, 0, 2, 1], [1, 0, 1, 0], [1, 2, 2, 0]], np.uint8)
    excess = scipy.sparse.csr_array(np.array([[2.0, 0, 0, -0.5], [0] * 4, [1, 0, 0, 0]]))
    p = 1 / (1 + np.exp(-baselines.fit_popularity(observed, excess)))
    np.testing.assert_allclose(p, [7 / 8, 1 / 4, 2 / 3, 1.5 / 4.5], rtol=1e-12)


def negative_log_density(position, observed, excess=None):
    """Minus the log joint density, and its gradient, written out over all entries."""
    user_bias, movie_bias = np.split(position, [len(observed)])
    logits = user_bias[:, None] + movie_bias
    known = (observed != 2) * 1.0
    known *= 1 if excess is None else 1 + excess.toarray()
    value = np.sum(known * (np.logaddexp(0, logits) - (observed == 1) * logits))
    slopes = known * (1 / (1 + np.exp(-logits)) - (observed == 1))
    gradient = np.concatenate([slopes.sum(axis=1), slopes.sum(axis=0)]) + position
    return value + position @ position / 2, gradient


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(50, 30), (3, 2), (1, 7)])
def test_biases_are_the_map(shape, weighted, monkeypatch):
    """The gradient vanishes there, and SciPy finds the same; few sweeps are enough."""
    monkeypatch.setattr(baselines, "_MAX_SWEEPS", 20)
    observed = np.random.default_rng(0).choice(3, shape, p=[0.7, 0.2, 0.1]).astype(np.uint8)
    excess = make_excess(observed) if weighted else None
    user_bias, movie_bias = baselines.fit_biases(observed, excess)
    position = np.concatenate([user_bias, movie_bias])
    assert position.dtype == np.float64
    assert abs(negative_log_density(position, observed, excess)[1]).max() < 1e-6

    found = scipy.optimize.minimize(
        negative_log_density, np.zeros(sum(shape)), (observed, excess), jac=True, tol=1e-10
    )
    np.testing.assert_allclose(position, found.x, atol=1e-4)
