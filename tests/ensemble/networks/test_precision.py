"""Networks in half precision: what is computed in it, what is not, and what is refused."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tfds_sets
from conftest import small_config
from flax import linen as nn
from flax import nnx

import ensemble
from ensemble import UserError, networks, registry
from ensemble.network import equations
from ensemble.networks.precision import check_dtype

SHAPE = (8, 8, 1)
NAMES = ["cnn", "lenet5", "logistic_regression", "mlp", "resnet20"]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Each test adds to a copy of the registry."""
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))


@pytest.mark.parametrize("name", NAMES)
def test_all_that_our_networks_multiply_is_half_and_all_that_they_keep_is_not(name):
    network = networks.create(name, 7, dtype="bfloat16")
    images = jax.ShapeDtypeStruct((3, *SHAPE), jnp.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), images)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    assert variables == jax.eval_shape(networks.create(name, 7).init, jax.random.key(0), images)
    jaxpr = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, images).jaxpr
    products = [
        [var.aval.dtype for var in one.invars]
        for one in equations(jaxpr)
        if one.primitive.name in ("dot_general", "conv_general_dilated")
    ]
    assert products
    assert all(dtype == jnp.bfloat16 for dtypes in products for dtype in dtypes)


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
    ours, theirs = (one.report["test"]["scores"]["nll"]["value"] for one in (half, full))
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


@pytest.mark.check
def test_a_resumed_run_in_half_precision_has_the_bits_of_the_straight_one(blobs, tmp_path):
    config = small_config(model="mlp", dtype="bfloat16")
    straight = ensemble.train(config, data=blobs)
    ensemble.train(config | {"num_epochs": 1}, data=blobs, workdir=str(tmp_path))
    resumed = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    jax.tree.map(
        np.testing.assert_array_equal, straight.predictor.fitted.sets, resumed.predictor.fitted.sets
    )
    with pytest.raises(UserError, match="dtype: 'bfloat16' -> 'float32'"):
        ensemble.train(config | {"dtype": "float32"}, data=blobs, workdir=str(tmp_path))


class Deaf(nn.Module):
    """Takes a dtype, and gives it to one layer or none."""

    num_outputs: int
    dtype: jnp.dtype | None = None
    given: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, dtype=self.dtype if self.given else None)(x)
        return nn.Dense(self.num_outputs)(x.astype(jnp.float32))


def test_what_cannot_compute_in_half_precision_is_refused_in_a_line(blobs):
    def refused(model, line):
        with pytest.raises(UserError, match=line) as error:
            ensemble.train(small_config(model=model, dtype="bfloat16"), data=blobs)
        assert "\n" not in str(error.value)

    refused("tiny", "'tiny', which takes no dtype; let its Linen class have a field `dtype`")
    networks.register("deaf", Deaf)
    refused("deaf", "'deaf' takes it, and computes none of its 2 products .* in it; give `dtype`")
    networks.register("kept", lambda num_outputs: nn.Dense(num_outputs, param_dtype=jnp.bfloat16))
    refused("kept", "'kept' keeps params/bias in bfloat16; leave its param_dtype at float32")
    networks.register("nnx", lambda k: networks.from_nnx(lambda rngs: nnx.Linear(6, k, rngs=rngs)))
    refused("nnx", "'nnx', which takes no dtype; .* or its factory an argument `dtype=None`")


def test_a_network_that_computes_partly_in_half_precision_is_noted(caplog):
    networks.register("deaf", lambda k: Deaf(k, given=True))
    check_dtype(networks.create("deaf", 3, dtype="bfloat16"), "deaf", "bfloat16", (6,))
    assert "'deaf' computes 1 of its 2 products" in caplog.text


@pytest.mark.check
def test_an_nnx_module_and_a_head_get_the_dtype_by_their_factories():
    def factory(num_outputs, dtype=None):
        return networks.from_nnx(lambda rngs: nnx.Linear(6, num_outputs, dtype=dtype, rngs=rngs))

    networks.register("mine", factory)
    networks.register("head", networks.on_features(lambda x: x, "mlp"))
    for name in ("mine", "head"):
        network = networks.create(name, 3, dtype="bfloat16")
        check_dtype(network, name, "bfloat16", (6,))
        variables = network.init(jax.random.key(0), jnp.ones((1, 6)))
        assert network.apply(variables, jnp.ones((2, 6)))[0].dtype == jnp.bfloat16
        assert networks.create(name, 3).apply(variables, jnp.ones((2, 6)))[0].dtype == jnp.float32


def test_samplers_refuse_half_precision_and_say_why(blobs):
    config = {"model": "mlp", "method": "hmc", "dtype": "bfloat16"}
    with pytest.raises(UserError, match=r"dtype='bfloat16'.*config.method='sgd'"):
        ensemble.train(config, data=blobs)


@pytest.mark.soak
def test_the_accuracy_on_mnist_is_within_the_interval_of_float32():
    config = {
        "dataset": "mnist",
        "data_dir": tfds_sets.real_data_dir("mnist"),
        "model": "mlp",
        "ensemble_size": 2,
        "num_steps": 400,
        "batch_size": 64,
        "learning_rate": 0.1,
        "schedule": "cosine",  # Else the noise of the last steps is larger than the interval.
    }
    half, full = (
        ensemble.train(config | {"dtype": dtype}).report["test"]["scores"]["accuracy"]["value"]
        for dtype in ("bfloat16", "float32")
    )
    assert full > 0.94
    assert half == pytest.approx(full, abs=1.96 * np.sqrt(full * (1 - full) / 10_000))
