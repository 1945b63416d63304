"""Networks in half precision: what is computed in it, what is not, and what is refused."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import small_config

import ensemble
from ensemble import networks

SHAPE = (8, 8, 1)
NAMES = ["cnn", "lenet5", "logistic_regression", "mlp", "resnet20"]


@pytest.mark.parametrize("name", NAMES)
def test_our_networks_compute_in_half_and_keep_nothing_in_it(name):
    network = networks.create(name, 7, dtype="bfloat16")
    images = jax.ShapeDtypeStruct((3, *SHAPE), jnp.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), images)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    full = networks.create(name, 7)
    assert variables == jax.eval_shape(full.init, jax.random.key(0), images)
    outputs, _ = jax.eval_shape(network.apply, variables, images)
    assert outputs.dtype == jnp.bfloat16


@pytest.mark.check
def test_a_run_in_half_precision_keeps_losses_scores_and_checkpoints_in_float32(blobs, tmp_path):
    config = small_config(**{"model": "mlp", "mlp.widths": "16", "num_epochs": 8})
    half = ensemble.train(
        config | {"dtype": "bfloat16"}, data=blobs, workdir=str(tmp_path / "half")
    )
    full = ensemble.train(config, data=blobs, workdir=str(tmp_path / "full"))
    for variables in (half.predictor.fitted.sets, full.predictor.fitted.sets):
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    with np.load(tmp_path / "half" / "predictions" / "test.npz") as stored:
        log_probs = stored["log_probs"]
    assert log_probs.dtype == np.float32
    # Half precision has three digits: softmax in it would not sum to one to six.
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=1e-6)
    assert (log_probs.astype(ml_dtypes.bfloat16).astype(np.float32) != log_probs).any()
    ours, theirs = (one.report["metrics"]["test"]["nll"]["value"] for one in (half, full))
    assert ours != theirs
    assert ours == pytest.approx(theirs, abs=0.02)
    loaded = ensemble.load(tmp_path / "half")  # It predicts as it was trained: in half precision.
    np.testing.assert_array_equal(
        loaded(blobs["inputs"]).member_log_probs, half.predictor(blobs["inputs"]).member_log_probs
    )
    losses = [
        value
        for line in (tmp_path / "half" / "metrics.jsonl").read_text().splitlines()
        for name, value in json.loads(line).items()
        if name.endswith("/loss")
    ]
    assert any(np.float32(value) != ml_dtypes.bfloat16(value) for value in losses)
