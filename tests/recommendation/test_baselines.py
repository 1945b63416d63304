"""Popularity and biases against SciPy's maximum and hand-worked cases."""

import numpy as np
import pytest
import scipy.optimize

from ensemble.recommendation import baselines


def test_popularity_is_laplaces_rule_and_a_watch_counts_by_its_weight():
    signs = np.array([[1, -1, 0, 1], [1, -1, 1, -1], [1, 0, 0, -1]])
    weighted = np.where(signs == 1, [[3, 1, 1, 0.5], [1] * 4, [2, 1, 1, 1]], signs)
    for one, expected in (
        (signs.astype(np.int8), [4 / 5, 1 / 4, 2 / 3, 2 / 5]),
        (weighted.astype(np.float32), [7 / 8, 1 / 4, 2 / 3, 1.5 / 4.5]),
    ):
        found = baselines.watch_baselines(one)["popularity"]
        p = 1 / (1 + np.exp(-found["movie_bias"]))
        np.testing.assert_allclose(p, expected, rtol=1e-12)
        assert not found["user_bias"].any()


def negative_log_density(position, signs):
    """Minus the log joint density, and its gradient, written out over all entries."""
    user_bias, movie_bias = np.split(position, [len(signs)])
    logits = user_bias[:, None] + movie_bias
    known = abs(signs.astype(np.float64))
    value = np.sum(known * (np.logaddexp(0, logits) - (signs > 0) * logits))
    slopes = known * (1 / (1 + np.exp(-logits)) - (signs > 0))
    gradient = np.concatenate([slopes.sum(axis=1), slopes.sum(axis=0)]) + position
    return value + position @ position / 2, gradient


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("shape", [(50, 30), (3, 2), (1, 7)])
def test_biases_are_the_map(shape, is_weighted, monkeypatch):
    """The gradient vanishes there, and SciPy finds the same; few sweeps are enough."""
    monkeypatch.setattr(baselines, "_MAX_SWEEPS", 20)
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1, 0], shape, p=[0.7, 0.2, 0.1]).astype(np.int8)
    if is_weighted:
        signs = np.where(signs == 1, rng.lognormal(0, 1, shape), signs)
    found = baselines.watch_baselines(signs)["biases"]
    position = np.concatenate([found["user_bias"], found["movie_bias"]])
    assert abs(negative_log_density(position, signs)[1]).max() < 1e-6
    expected = scipy.optimize.minimize(
        negative_log_density, np.zeros(sum(shape)), (signs,), jac=True, tol=1e-10
    )
    np.testing.assert_allclose(position, expected.x, atol=1e-4)


def test_biases_of_ratings_are_at_the_mode():
    rng = np.random.default_rng(0)
    shape = 40, 15
    pairs = np.argwhere(rng.random(shape) < 0.6)
    values = rng.normal(size=len(pairs))
    weights = rng.integers(1, 4, len(pairs)) * 1.0
    values += rng.normal(size=15)[pairs[:, 1]]
    found = baselines.rating_baselines(pairs, values, weights, shape)
    user, item = (found["biases"][f"{one}_bias"] for one in ("user", "movie"))

    def objective(point):
        user, item, log_sd = np.split(point, [40, 55])
        errors = values - user[pairs[:, 0]] - item[pairs[:, 1]]
        data = np.sum(weights * (0.5 * (errors / np.exp(log_sd)) ** 2 + log_sd))
        return data + 0.5 * np.sum(point[:-1] ** 2)

    errors = values - user[pairs[:, 0]] - item[pairs[:, 1]]
    log_sd = 0.5 * np.log(np.average(errors**2, weights=weights))
    point = np.concatenate([user, item, [log_sd]])
    assert abs(scipy.optimize.approx_fprime(point, objective, 1e-7)).max() < 0.05
    sd = 1e-3 + np.logaddexp(
        0, found["biases"]["likelihood"]["raw_scale"] + np.log(np.expm1(0.999))
    )
    assert np.log(sd) == pytest.approx(log_sd, abs=1e-5)
    of_item = pairs[:, 1] == 4
    expected = np.sum(weights[of_item] * values[of_item]) / (weights[of_item].sum() + 1)
    assert found["popularity"]["movie_bias"][4] == pytest.approx(expected)
    assert not found["popularity"]["user_bias"].any()
