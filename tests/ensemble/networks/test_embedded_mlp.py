"""The embeddings of numbers, and the network behind them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ensemble
from ensemble import UserError, networks, registry
from ensemble.networks.embedded_mlp import Periodic, PiecewiseLinear
from ensemble.sources.dataset import dataset_from_arrays, with_quantiles
from ensemble.storage.schema import check_description
from ensemble.tasks.learning_data import describe, make_likelihood

QUIET = {"show_progress": False}
CONFIG = {
    "model": "embedded_mlp",
    "embedded_mlp.widths": "16",
    "likelihood": "gaussian",
    "ensemble_size": 2,
    "num_epochs": 3,
    "learning_rate": 0.01,
    "optimizer": "adam",
    "num_devices": 1,
}


def table(num_rows=240):
    """Two numbers, one of them far from normal, a flag and a constant."""
    rng = np.random.default_rng(0)
    flag = rng.integers(0, 2, num_rows)
    columns = [rng.normal(size=num_rows), rng.exponential(size=num_rows), flag, np.ones(num_rows)]
    inputs = np.stack(columns, axis=1).astype(np.float32)
    targets = np.sign(np.sin(6 * inputs[:, 0])) + flag + 0.1 * rng.normal(size=num_rows)
    return {"inputs": inputs, "targets": targets}


def test_the_encoding_by_hand():
    """Bins 0 to 1 and 1 to 3; the second feature has one bin, and no second."""
    module = PiecewiseLinear(2, ((0.0, 1.0, 3.0), (0.0, 2.0, 2.0)))
    x = jnp.array([[-1.0, -1.0], [0.5, 1.0], [2.0, 2.0], [5.0, 4.0]])
    params = module.init(jax.random.key(0), x)["params"]
    assert (np.asarray(params["kernel"]) == 0).all()  # It starts as a line.
    line = x[:, :, None] * params["line"] + params["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, x), line, rtol=1e-6)
    # Each number of the embedding is one of the encoding.
    zeros = jax.tree.map(jnp.zeros_like, params)
    found = module.apply({"params": zeros | {"kernel": jnp.stack([jnp.eye(2)] * 2)}}, x)
    assert found[:, 0].tolist() == [[-1, 0], [0.5, 0], [1, 0.5], [1, 2]]
    assert found[:, 1].tolist() == [[-0.5, 0], [0.5, 0], [1, 0], [2, 0]]


@pytest.mark.check
def test_waves_of_each_feature():
    module = Periodic(3, 0.5)
    x = jax.random.normal(jax.random.key(1), (5, 2))
    params = module.init(jax.random.key(0), x)["params"]
    found = module.apply({"params": params}, x)
    for f in range(2):
        angles = 2 * np.pi * np.outer(x[:, f], params["frequencies"][f])
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        expected = np.maximum(waves @ params["kernel"][f] + params["bias"][f], 0)
        np.testing.assert_allclose(found[:, f], expected, rtol=1e-4, atol=1e-5)
    assert np.std(params["frequencies"]) == pytest.approx(0.5, rel=0.15)


def test_quantiles_are_those_of_what_the_network_sees():
    rows = {"train_inputs": table()["inputs"], "train_targets": table()["targets"]}
    dataset = with_quantiles(dataset_from_arrays(rows, hold_out=False))
    seen = (rows["train_inputs"] - dataset.shift) * dataset.scale
    assert dataset.quantiles.shape == (4, 65)
    for feature, levels in ((0, [0, 0.25, 0.5, 1]), (1, [0, 0.25, 0.5, 1])):
        expected = np.quantile(seen[:, feature], levels, method="lower")
        found = dataset.quantiles[feature][[0, 16, 32, 64]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("embedding", ["piecewise_linear", "periodic"])
def test_flags_and_constants_go_on_as_they_are(embedding):
    dataset = with_quantiles(dataset_from_arrays(table()))
    settings = {"widths": "7", "size": 5, "embedding": embedding}
    network = networks.create("embedded_mlp", 2, settings, quantiles=dataset.quantiles)
    params = network.init(jax.random.key(0), jnp.ones((1, 4)))["params"]
    assert params["mlp"]["Dense_0"]["kernel"].shape == (2 * 5 + 2, 7)
    assert params["embedding"]["kernel"].shape[0] == 2


def test_a_flag_is_one_however_often_it_is_set():
    """Interpolated quantiles of a flag may have a third value."""
    rng = np.random.default_rng(0)
    flags = (rng.random((200, 60)) < rng.random(60)).astype(np.float32)
    rows = {"train_inputs": flags, "train_targets": flags.sum(axis=1)}
    dataset = with_quantiles(dataset_from_arrays(rows, hold_out=False))
    assert max(len(np.unique(one)) for one in dataset.quantiles) == 2


@pytest.mark.check
@pytest.mark.parametrize("embedding", ["piecewise_linear", "periodic"])
def test_a_run_is_loaded_with_its_quantiles_alone(embedding, tmp_path):
    config = CONFIG | {"embedded_mlp.embedding": embedding}
    result = ensemble.train(config, table(), str(tmp_path), **QUIET)
    inputs = table()["inputs"][:9]
    expected = result.predictor(inputs)
    found = ensemble.load(tmp_path)(inputs)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
    longer = CONFIG | {"embedded_mlp.embedding": embedding, "num_epochs": 4}
    ensemble.train(longer, table(), str(tmp_path), **QUIET)


@pytest.mark.check
def test_it_learns_what_jumps_sooner_than_a_plain_network():
    scores = {}
    for model in ("mlp", "embedded_mlp"):
        config = {"num_epochs": 60, "batch_size": 32, f"{model}.widths": "32", "model": model}
        kept = {key: one for key, one in CONFIG.items() if "embedded" not in key}
        report = ensemble.train({**kept, **config}, table(2000), **QUIET).report
        scores[model] = report["test"]["scores"]["rmse"]["value"]
    assert scores["embedded_mlp"] < 0.85 * scores["mlp"], scores


@pytest.mark.parametrize("forged", [[[1.0, 2.0]], [[2.0] + [1.0] * 64] * 4, "text"])
def test_forged_quantiles_are_refused(forged):
    dataset = with_quantiles(dataset_from_arrays(table()))
    likelihood = make_likelihood(dataset, "gaussian")
    description = {**describe(dataset), **likelihood.describe()}
    check_description(description, "gaussian")
    with pytest.raises(ValueError, match="quantiles"):
        check_description({**description, "quantiles": forged}, "gaussian")


def test_pictures_and_heads_have_no_quantiles():
    images = {"inputs": np.zeros((60, 4, 4, 1), np.float32), "labels": np.arange(60) % 3}
    with pytest.raises(UserError, match="embedded_mlp' asks for input_quantiles"):
        ensemble.train(CONFIG | {"likelihood": "categorical"}, images, **QUIET)
    factory = networks.on_features(lambda x: x.reshape((len(x), -1)), "embedded_mlp")
    with pytest.raises(UserError, match="embedded_mlp' asks for input_quantiles"):
        factory(3)


@pytest.mark.check
def test_a_network_of_ones_own_is_given_quantiles(monkeypatch):
    seen = []

    def factory(num_outputs, input_quantiles):
        seen.append(np.shape(input_quantiles))
        return networks.MLP(num_outputs, (4,))

    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))
    networks.register("of_quantiles", factory)
    config = {key: value for key, value in CONFIG.items() if "embedded" not in key}
    ensemble.train(config | {"model": "of_quantiles", "num_epochs": 1}, table(), **QUIET)
    assert set(seen) == {(4, 65)}


@pytest.mark.check
def test_sampling_takes_it_too():
    config = {
        "method": "mclmc",
        "model": "embedded_mlp",
        "embedded_mlp.widths": "4",
        "embedded_mlp.size": 2,
        "embedded_mlp.num_bins": 4,
        "likelihood": "gaussian",
        "prior": "normal(1)",
        "init_from": "prior",
        "num_chains": 2,
        "num_devices": 1,
        "sampler.num_warmup": 20,
        "sampler.num_samples": 20,
    }
    result = ensemble.train(config, table(80), **QUIET)
    assert np.isfinite(result.report["test"]["scores"]["nll"]["value"])


@pytest.mark.check
def test_a_student_has_quantiles_of_the_teachers_data(tmp_path):
    plain = {key: one for key, one in CONFIG.items() if "embedded" not in key} | {"model": "mlp"}
    ensemble.train(plain, table(), str(tmp_path / "teacher"), **QUIET)
    student = {
        "model": "embedded_mlp",
        "embedded_mlp.widths": "8",
        "num_epochs": 1,
        "num_blends": 1,
    }
    where = str(tmp_path / "student")
    found = ensemble.distill(str(tmp_path / "teacher"), where, student, table(), **QUIET)
    inputs = table()["inputs"][:5]
    expected = found.predictor(inputs).mean
    np.testing.assert_allclose(ensemble.load(where)(inputs).mean, expected, rtol=1e-4, atol=1e-5)
