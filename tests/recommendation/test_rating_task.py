"""Ratings from end to end: the likelihood, baselines, scores, resumption, recommendations."""

import json

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from run_parts import validated

import ensemble
from ensemble import InputError
from ensemble.data.source import in_memory
from ensemble.recommendation import factorisation, likelihood
from ensemble.recommendation.dataset import given_interactions
from ensemble.run.loop import create_task
from ensemble.sharding.mesh import create_mesh

NUM_USERS, NUM_ITEMS = 81, 30  # Whose ratings 2 shards do not divide.


def frame(weighted=False):
    """Ratings around 3.5 of planted biases and two factors, with noise of 0.5."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((NUM_USERS, NUM_ITEMS)) < 0.6)
    of_users = rng.normal(size=(NUM_USERS, 2))
    of_items = rng.normal(size=(NUM_ITEMS, 2))
    bias = 0.7 * rng.normal(size=NUM_ITEMS)
    means = 3.5 + 0.6 * (of_users[users] * of_items[items]).sum(axis=1) + bias[items]
    data = {
        "user": [f"u{one}" for one in users],
        "item": [f"i{one}" for one in items],
        "rating": means + 0.5 * rng.normal(size=len(users)),
        "time": rng.permutation(len(users)),
    }
    if weighted:
        data["weight"] = rng.integers(1, 4, len(users))
    return pd.DataFrame(data)


def rating_config(**overrides):
    hmc = {
        "step_size": 0.05,
        "num_leapfrog_steps": 16,
        "num_warmup": 200,
        "num_samples": 60,
        "thinning": 2,
    } | overrides.pop("sampler", {})
    return {
        "model": "matrix_factorisation",
        "likelihood": "gaussian_homoscedastic",
        "num_factors": 2,
        "method": "hmc",
        "prior": "normal(1)",
        "num_chains": 1,
        "num_devices": 2,
        "log_every_steps": 20,
        "sampler": hmc,
        **overrides,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one chain on two devices."""
    workdir = tmp_path_factory.mktemp("ratings")
    return workdir, ensemble.train(rating_config(), frame(), str(workdir))


def make_task(data=None, **overrides):
    given = given_interactions(frame(weighted=True) if data is None else data)
    return create_task(validated(rating_config(**overrides)), given)


@pytest.mark.check
@pytest.mark.parametrize("num_devices", [1, 2])
def test_value_and_gradient_match_float64_and_pairs_on_any_devices(num_devices, monkeypatch):
    monkeypatch.setattr(likelihood, "_MIN_ROWS", 11)
    monkeypatch.setitem(likelihood._ENTRIES_PER_BLOCK, "cpu", 1)
    task = make_task()
    mesh = create_mesh(1, num_devices, jax.devices())
    pairs, ratings = in_memory(task.dataset, "train")
    weights = task.dataset.weights
    params, other = (task.sample_prior(jax.random.key(seed)) for seed in (3, 4))

    def compute():
        own = task.own_log_likelihood(in_memory(task.dataset, "train"), mesh)
        placed = own.place()
        value_and_grad = jax.jit(own.value_and_grad)
        value, gradient = value_and_grad(own.layout.pad(params), placed)
        base, _ = value_and_grad(own.layout.pad(other), placed)
        return jax.device_get((value, own.layout.strip(gradient), base))

    value, gradient, base = compute()
    monkeypatch.setattr(factorisation, "_PAIRS_PER_RATING", 0)
    by_pairs, gradient_by_pairs, _ = compute()
    assert value == pytest.approx(by_pairs, rel=1e-5)
    for name, leaf in gradient_by_pairs.items():
        if name != "likelihood":
            np.testing.assert_allclose(gradient[name], leaf, atol=1e-5 * np.abs(leaf).max())
    own, own_by_pairs = (one["likelihood"]["raw_scale"] for one in (gradient, gradient_by_pairs))
    assert own == pytest.approx(own_by_pairs, rel=1e-5)

    def exact(params):
        """A weight is how often a rating counts."""
        users, items = pairs.T
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        mean = (params["user_embeddings"][users] * params["movie_embeddings"][items]).sum(axis=1)
        mean += params["user_bias"][users] + params["movie_bias"][items]
        raw = params["likelihood"]["raw_scale"]
        sd = 1e-3 + np.log1p(np.exp(raw + np.log(np.expm1(1 - 1e-3))))
        shift = task.likelihood.shift
        scale = task.likelihood.scale
        return np.sum(weights * scipy.stats.norm.logpdf(ratings, shift + scale * mean, scale * sd))

    # Up to a constant.
    assert value - base == pytest.approx(exact(params) - exact(other), rel=1e-4)
    step = 1e-5
    moved = {**params, "movie_bias": np.asarray(params["movie_bias"], np.float64)}
    up = moved | {"movie_bias": moved["movie_bias"] + step * np.eye(NUM_ITEMS)[3]}
    slope = (exact(up) - exact(moved)) / step
    assert gradient["movie_bias"][3] == pytest.approx(slope, rel=1e-3)


@pytest.mark.check
def test_the_simplest_models_are_at_their_modes():
    """Ratings in their own units: biases have priors of one standard deviation."""
    task = make_task()
    pairs, ratings = in_memory(task.dataset, "train")
    weights = task.dataset.weights
    values = (ratings - ratings.mean()) / ratings.std()
    of_item = pairs[:, 1] == 4
    expected = np.sum(weights[of_item] * values[of_item]) / (weights[of_item].sum() + 1)
    assert task.popularity["movie_bias"][4] == pytest.approx(expected, rel=1e-4)
    biases = task.biases(create_mesh(1, 2, jax.devices()))
    user, item = (biases[f"{one}_bias"] for one in ("user", "movie"))
    left = values - user[pairs[:, 0]] - item[pairs[:, 1]]
    precision = 1 / np.average(left**2, weights=weights)
    for bias, numbers in ((user, pairs[:, 0]), (item, pairs[:, 1])):
        slope = precision * np.bincount(numbers, weights * left, len(bias)) - bias
        np.testing.assert_allclose(slope, 0, atol=0.1)


@pytest.mark.check
def test_recommendations_are_ratings(finished):
    workdir, result = finished
    with pytest.raises(InputError, match="has learned a data frame, which is not kept"):
        ensemble.recommend(workdir, "u3")
    answer = ensemble.recommend(workdir, "u3", data=frame())
    assert answer.of == "rating"
    first, *others = answer.items
    seen = set(frame().query("user == 'u3'")["item"])
    assert seen.isdisjoint(one.item for one in answer.items)
    assert len(others) == NUM_ITEMS - len(seen) - 1
    found = make_task().dataset
    pair = [[found.user_ids.index("u3"), found.items["item"].tolist().index(first.item)]]
    assert first.mean == pytest.approx(result.predictor(np.array(pair)).mean[0], rel=1e-4)
    document = json.loads(json.dumps(answer.document()))
    assert document["num_seen"] == len(seen)
    assert document["recommendations"][0]["mean"] == first.mean
    (one,) = ensemble.recommend(workdir, "me", item="i3", data=frame()).items
    spread = frame()["rating"].std()
    assert one.low < one.mean - spread
    assert one.mean + spread < one.high
    with pytest.raises(InputError, match="has learned other data"):
        ensemble.recommend(workdir, "u3", data=frame()[:-1])
