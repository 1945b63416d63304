"""Heads on the features of a frozen backbone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ensemble
from ensemble import InputError, networks
from ensemble.config.pieces import path_of

WEIGHTS = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)
CONFIG = {
    "num_epochs": 2,
    "ensemble_size": 2,
    "num_devices": 1,
    "batch_size": 32,
    "learning_rate": 0.1,
}


def features(inputs):
    return jnp.tanh(inputs @ WEIGHTS)


@pytest.mark.check
def test_heads_learn_features_and_predict_raw_inputs(blobs, tmp_path):
    mine = path_of(networks.on_features(features, "logistic_regression"))
    ensemble.train(
        {**CONFIG, "model": mine}, data=blobs, workdir=tmp_path / "run", show_progress=False
    )
    loaded = ensemble.load(tmp_path / "run", num_devices=1)
    raw = blobs["inputs"][:9]
    params = loaded.fitted.sets["params"]["Dense_0"]
    assert params["kernel"].shape == (2, 5, 3)
    logits = np.asarray(features(raw)) @ params["kernel"] + params["bias"][:, None]
    np.testing.assert_allclose(loaded(raw).member_log_probs, jax.nn.log_softmax(logits), atol=1e-4)


def test_a_backbone_of_another_library_is_refused_in_a_line(blobs):
    def of_numpy(inputs):
        return np.tanh(np.asarray(inputs) @ WEIGHTS)

    mine = path_of(networks.on_features(of_numpy, "mlp"))
    with pytest.raises(InputError, match=r"failed at .*TracerArrayConversionError"):
        ensemble.train({**CONFIG, "model": mine}, data=blobs, show_progress=False)
