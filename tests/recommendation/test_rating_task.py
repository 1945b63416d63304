"""Ratings from end to end: the likelihood, baselines, scores, resumption, recommendations."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.stats
from run_parts import draws_of, validated

import ensemble
from ensemble import UserError
from ensemble.recommendation import rating_likelihood, watch_likelihood
from ensemble.recommendation.baselines import fit_item_means, fit_rating_biases
from ensemble.recommendation.datasets import given_interactions
from ensemble.run.loop import create_task
from ensemble.sharding.mesh import create_mesh
from ensemble.source import in_memory

NUM_USERS, NUM_ITEMS = 81, 30  # Whose ratings 2 shards do not divide.


def frame(weighted=False):
    """Ratings around 3.5 of planted biases and two factors, with noise of 0.5."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((NUM_USERS, NUM_ITEMS)) < 0.6)
    of_users, of_items = rng.normal(size=(NUM_USERS, 2)), rng.normal(size=(NUM_ITEMS, 2))
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
        "thin": 2,
    } | overrides.pop("sampler", {})
    return {
        "model": "matrix_factorisation",
        "likelihood": "gaussian_shared",
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
def test_the_report_lays_the_posterior_beside_simpler_models(finished):
    workdir, result = finished
    report = json.loads((workdir / "report.json").read_text())
    held_out = report["recommendation"]["held_out"]
    assert held_out.keys() == {"posterior", "map", "biases", "popularity"}
    # The evaluation of the run's own predictions agrees: same draws, other code.
    scores = report["test"]["scores"]
    assert held_out["posterior"]["log_likelihood"] == pytest.approx(
        -scores["nll"]["value"], abs=1e-4
    )
    assert held_out["posterior"]["rmse"] == pytest.approx(scores["rmse"]["value"], rel=1e-4)
    assert held_out["posterior"]["rmse"] < 0.95 * held_out["biases"]["rmse"]
    assert held_out["posterior"]["log_likelihood"] > held_out["map"]["log_likelihood"]
    assert {path.name for path in (workdir / "plots").iterdir()} >= {"recommended_titles.png"}
    most = report["recommendation"]["first_choices"]["most"]
    assert most["num_rated"] == frame()["user"].value_counts().max()
    assert "nats a rating" in str(result)


@pytest.mark.check
def test_a_resumption_changes_no_bit(finished, tmp_path):
    ensemble.train(rating_config(sampler={"num_samples": 20}), frame(), str(tmp_path))
    ensemble.train(rating_config(), frame(), str(tmp_path))
    straight, resumed = (draws_of(one).positions()[0] for one in (finished[0], tmp_path))
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


@pytest.mark.check
@pytest.mark.parametrize("num_devices", [1, 2])
def test_value_and_gradient_match_float64_on_any_devices(num_devices):
    task = make_task()
    mesh = create_mesh(1, num_devices, jax.devices())
    (pairs, ratings), weights = in_memory(task.dataset, "train"), task.dataset.weights
    own = task.own_log_likelihood(in_memory(task.dataset, "train"), mesh)
    params = task.sample_prior(jax.random.key(3))
    other = task.sample_prior(jax.random.key(4))
    placed = own.place()
    value, gradient = jax.jit(own.value_and_grad)(params, placed)
    base, _ = own.value_and_grad(other, placed)

    def exact(params):
        users, items = pairs.T
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        mean = (params["user_embeddings"][users] * params["movie_embeddings"][items]).sum(axis=1)
        mean += params["user_bias"][users] + params["movie_bias"][items]
        raw = params["likelihood"]["raw_scale"]
        least = 1e-3
        sd = least + np.log1p(np.exp(raw + np.log(np.expm1(1 - least))))
        shift, scale = task.likelihood.shift, task.likelihood.scale
        return np.sum(weights * scipy.stats.norm.logpdf(ratings, shift + scale * mean, scale * sd))

    # Up to a constant.
    assert value - base == pytest.approx(exact(params) - exact(other), rel=1e-4)
    step = 1e-5
    moved = {**params, "movie_bias": np.asarray(params["movie_bias"], np.float64)}
    up = moved | {"movie_bias": moved["movie_bias"] + step * np.eye(NUM_ITEMS)[3]}
    slope = (exact(up) - exact(moved)) / step
    assert gradient["movie_bias"][3] == pytest.approx(slope, rel=1e-3)


@pytest.mark.check
@pytest.mark.parametrize("num_devices", [1, 2])
def test_blocks_are_pairs(num_devices, monkeypatch):
    """Chains by blocks of users have the values and the gradients that they have by pairs."""
    monkeypatch.setattr(watch_likelihood, "rows_of_block", lambda *_: 11)  # 4 blocks of a shard.
    task, mesh = make_task(), create_mesh(1, num_devices, jax.devices())
    (pairs, ratings), rng = in_memory(task.dataset, "train"), np.random.default_rng(0)
    reference = rng.normal(size=len(ratings)).astype(np.float32)
    data = rating_likelihood.Ratings(pairs, ratings, task.weights, reference)
    params = jax.vmap(task.sample_prior)(jax.random.split(jax.random.key(3), 2))

    def log_prob(params, outputs, targets):
        return task.likelihood.log_prob(params["likelihood"], outputs, targets)

    def outputs(params, pairs):
        return task.outputs({"params": params}, pairs)[1]

    placed = rating_likelihood.place_blocks(data, *task.shape, mesh)
    assert len(placed.users) == 8
    assert sorted(placed.users[placed.users > 0].tolist()) == list(range(1, NUM_USERS))
    counts = np.count_nonzero(placed.weights, axis=1)
    assert counts.sum() == len(ratings)
    assert np.ptp(counts) <= NUM_ITEMS
    by_blocks = jax.vmap(rating_likelihood.by_blocks(log_prob, mesh), in_axes=(0, None))
    by_pairs = jax.vmap(rating_likelihood.by_pairs(log_prob, outputs, mesh), in_axes=(0, None))
    found = jax.jit(by_blocks)(params, placed)
    expected = jax.jit(by_pairs)(params, rating_likelihood.place_pairs(data, mesh))
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


@pytest.mark.check
def test_few_ratings_of_many_pairs_are_learned_by_pairs(monkeypatch):
    """Their products would take longer than the ratings, and both forms are the same model."""
    task, mesh = make_task(), create_mesh(1, 2, jax.devices())
    params = task.sample_prior(jax.random.key(3))

    def value_of():
        own = task.own_log_likelihood(in_memory(task.dataset, "train"), mesh)
        placed = own.place()
        return type(placed), float(jax.jit(own.value_and_grad)(params, placed)[0])

    kind, dense = value_of()
    assert kind is rating_likelihood.PlacedBlocks
    monkeypatch.setattr(rating_likelihood, "_ENTRIES_PER_RATING", 1)
    kind, sparse = value_of()
    assert kind is rating_likelihood.Ratings
    assert sparse == pytest.approx(dense, rel=1e-4)


def test_biases_are_at_the_mode():
    task = make_task()
    pairs, ratings = in_memory(task.dataset, "train")
    values = (ratings - task.likelihood.shift) / task.likelihood.scale
    weights = task.dataset.weights.astype(np.float64)
    found = fit_rating_biases(pairs, values, weights, NUM_USERS, NUM_ITEMS)

    def objective(point):
        user, item, log_sd = point[:NUM_USERS], point[NUM_USERS:-1], point[-1]
        errors = values - user[pairs[:, 0]] - item[pairs[:, 1]]
        data = np.sum(weights * (0.5 * (errors / np.exp(log_sd)) ** 2 + log_sd))
        return data + 0.5 * np.sum(point[:-1] ** 2)

    point = np.concatenate([found.user_bias, found.item_bias, [np.log(found.sd)]])
    assert abs(scipy.optimize.approx_fprime(point, objective, 1e-7)).max() < 0.05
    means = fit_item_means(pairs, values, weights, NUM_USERS, NUM_ITEMS)
    of_item = pairs[:, 1] == 4
    expected = np.sum(weights[of_item] * values[of_item]) / (weights[of_item].sum() + 1)
    assert means.item_bias[4] == pytest.approx(expected)
    assert not means.user_bias.any()


@pytest.mark.check
def test_weights_are_counts():
    """A rating of weight 2 is the same as one that is there twice."""
    data = frame(weighted=True)
    task = make_task(data)
    plain = make_task(data.drop(columns="weight"))
    mesh = create_mesh(1, 1, jax.devices())
    split = in_memory(task.dataset, "train")
    params = task.sample_prior(jax.random.key(0))
    counts = task.dataset.weights.astype(int)
    one, _ = plain.log_likelihood({"params": params}, *map(jnp.asarray, split))
    own = task.own_log_likelihood(split, mesh)
    value, _ = own.value_and_grad(params, own.place())
    placed = own.place()
    reference = np.sum(placed.weights * placed.reference)
    assert value + reference == pytest.approx(np.repeat(np.asarray(one), counts).sum(), rel=1e-5)


@pytest.mark.check
def test_recommendations_are_ratings(finished):
    workdir, result = finished
    with pytest.raises(UserError, match="has learned a data frame, which is not kept"):
        ensemble.recommend(workdir, "u3")
    text = str(ensemble.recommend(workdir, "u3", top=2, data=frame()))
    assert text.startswith("User u3 has rated ")
    assert "rating" in text.splitlines()[2]
    answer = ensemble.recommend(workdir, "u3", data=frame())
    assert answer.of == "rating"
    first, *others = answer.items
    seen = set(frame().query("user == 'u3'")["item"])
    assert seen.isdisjoint(one.item for one in answer.items)
    assert len(others) == NUM_ITEMS - len(seen) - 1
    names = make_task().dataset.names
    pair = [[names.user_ids.index("u3"), names.titles.index(first.title)]]
    assert first.mean == pytest.approx(result.predictor(np.array(pair)).mean[0], rel=1e-4)
    document = json.loads(json.dumps(answer.document()))
    assert document["num_rated"] == len(seen)
    assert document["recommendations"][0]["rating"] == first.mean
    new = ensemble.recommend(workdir, "me", item="unheard", data=frame())
    assert new.from_prior == ("user", "item")
    (one,) = new.items
    spread = frame()["rating"].std()
    assert one.low < one.mean - 2 * spread
    assert one.mean + 2 * spread < one.high
    with pytest.raises(UserError, match="has learned other data"):
        ensemble.recommend(workdir, "u3", data=frame()[:-1])
