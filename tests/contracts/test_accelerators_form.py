"""Accelerators vmap members and have plain convolutions: the same results, here on CPU."""

import numpy as np
import pytest

import ensemble
from ensemble.networks import layers
from ensemble.sharding.placement import Placement

MEMBERS = {"model": "cnn", "ensemble_size": 2, "num_devices": 1, "batch_size": 32}
LEARNS = {**MEMBERS, "num_epochs": 2, "learning_rate": 0.02}
KRONECKER = {**MEMBERS, "method": "laplace", "laplace.structure": "kronecker"}
METHODS = {
    "sgd": LEARNS,
    "cross_fitted": {**LEARNS, "method": "cross_fitted"},
    "batch_ensemble": {
        **LEARNS,
        "method": "batch_ensemble",
        "batch_ensemble.num_estimators": 2,
    },
    "packed": {
        **LEARNS,
        "method": "packed",
        "packed.num_estimators": 2,
        "packed.gamma": 2,
    },
    "varied": {**LEARNS, "method": "varied", "varied.dropout": "0.1,0.3", "augment.shift": 1},
    "swag": {**LEARNS, "method": "swag", "swag.num_iterates": 2, "swag.num_draws": 2},
    "mc_dropout": {
        **LEARNS,
        "method": "mc_dropout",
        "cnn.dropout": 0.2,
        "mc_dropout.num_passes": 2,
    },
    "laplace": {**MEMBERS, "method": "laplace"},
    "laplace, diagonal": {**MEMBERS, "method": "laplace", "laplace.structure": "diagonal"},
    "laplace, low rank": {**MEMBERS, "method": "laplace", "laplace.structure": "low_rank"},
    "laplace, kronecker": KRONECKER,
    "laplace, draws": {**KRONECKER, "laplace.predictive": "draws", "laplace.num_draws": 2},
}
SLOW = ("laplace, low rank", "laplace, kronecker", "laplace, draws")
QUIET = {"show_progress": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of members to begin with."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    ensemble.train(LEARNS, data(), str(workdir), **QUIET)
    return workdir


def data(num_examples=120):
    rng = np.random.default_rng(0)
    labels = np.arange(num_examples) % 3
    images = rng.normal(size=(num_examples, 8, 8, 1)) + labels[:, None, None, None]
    return {"inputs": images.astype(np.float32), "labels": labels}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if name in SLOW else pytest.mark.check)
        for name in METHODS
    ],
)
def test_it_is_the_same_ensemble(trained, monkeypatch, tmp_path, name):
    config = METHODS[name]
    if config.get("method") == "laplace":
        config = {**config, "init_from": str(trained)}
    expected = ensemble.train(config, data(), **QUIET)
    monkeypatch.setattr(Placement, "platform", "gpu")
    monkeypatch.setattr(layers, "on_cpu", lambda: False)
    found = ensemble.train(config, data(), str(tmp_path), **QUIET)
    nlls = [one.report["test"]["scores"]["nll"] for one in (found, expected)]
    np.testing.assert_allclose(nlls[0]["members"], nlls[1]["members"], rtol=2e-3)
    inputs = data()["inputs"]
    probs = ensemble.load(tmp_path)(inputs).probs
    np.testing.assert_allclose(probs, expected.predictor(inputs).probs, atol=2e-3)
