"""Accelerators vmap members and have plain convolutions: the same results, here on CPU."""

import numpy as np
import pytest

import ensemble
from ensemble.networks import layers

LEARNS = {
    "model": "cnn",
    "ensemble_size": 2,
    "num_devices": 1,
    "num_epochs": 2,
    "batch_size": 32,
    "learning_rate": 0.02,
}
METHODS = {
    "sgd": LEARNS,
    "batch_ensemble": {
        **LEARNS,
        "method": "batch_ensemble",
        "num_estimators": 2,
    },
}
QUIET = {"show_progress": False}


def data(num_examples=120):
    rng = np.random.default_rng(0)
    labels = np.arange(num_examples) % 3
    images = rng.normal(size=(num_examples, 8, 8, 1)) + labels[:, None, None, None]
    return {"inputs": images.astype(np.float32), "labels": labels}


@pytest.mark.check
@pytest.mark.parametrize("name", METHODS)
def test_it_is_the_same_ensemble(monkeypatch, tmp_path, name):
    config = METHODS[name]
    expected = ensemble.train(config, data(), **QUIET)
    monkeypatch.setattr("ensemble.runtime.devices.platform_of", lambda mesh: "gpu")
    monkeypatch.setattr(layers, "on_cpu", lambda: False)
    found = ensemble.train(config, data(), str(tmp_path), **QUIET)
    nlls = [one.report["metrics"]["test"]["nll"] for one in (found, expected)]
    np.testing.assert_allclose(nlls[0]["members"], nlls[1]["members"], rtol=2e-3)
    inputs = data()["inputs"]
    probs = ensemble.load(tmp_path)(inputs).probs
    np.testing.assert_allclose(probs, expected.predictor(inputs).probs, atol=2e-3)
