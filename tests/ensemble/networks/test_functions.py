"""Two plain functions as a network: trees of parameters of any form, through a whole run."""

import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import checkpoints_of

import ensemble
from ensemble import UserError, networks, registry
from ensemble.export import export
from ensemble.network import Traits, traits

KEY = jax.random.key(0)
INPUTS = jax.random.normal(jax.random.key(7), (5, 6))


def init_layers(rng_key, inputs):
    """Two dense layers as a list of pairs, with one without parameters between them."""
    key_first, key_second = jax.random.split(rng_key)
    first = jax.random.normal(key_first, (inputs.shape[1], 8)) / 2
    return [(first, jnp.zeros(8)), (), (jax.random.normal(key_second, (8, 3)) / 3, jnp.zeros(3))]


def apply_layers(params, inputs):
    (kernel, bias), (), (last_kernel, last_bias) = params
    return jnp.tanh(inputs @ kernel + bias) @ last_kernel + last_bias


class Layer(NamedTuple):
    """Parameters with names."""

    kernel: Any
    bias: Any


def make_layer(rng_key, inputs):
    return Layer(jax.random.normal(rng_key, (inputs.shape[1], 3)), 0.5)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))
    networks.register("pair", lambda k: networks.from_functions(init_layers, apply_layers))


@pytest.mark.parametrize(
    ("init", "apply", "shapes"),
    [
        (init_layers, apply_layers, {"0": {"0": (6, 8), "1": (8,)}, "2": {"0": (8, 3), "1": (3,)}}),
        (make_layer, lambda p, x: x @ p.kernel + p.bias, {"kernel": (6, 3), "bias": ()}),
        (lambda key, x: jnp.ones((x.shape[1], 3)), lambda p, x: x @ p, {"array": (6, 3)}),
    ],
)
def test_any_tree_of_parameters_becomes_nested_dicts_and_comes_back(init, apply, shapes):
    network = networks.from_functions(init, apply)
    variables = network.init(KEY, INPUTS[:1])
    assert jax.tree.map(jnp.shape, variables) == {"params": shapes}
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(variables))
    read = jax.tree.map(np.asarray, variables)  # As from a checkpoint.
    for train in (False, True):
        outputs, state = network.apply(read, INPUTS, train, KEY)
        np.testing.assert_allclose(outputs, apply(init(KEY, INPUTS), INPUTS), rtol=1e-6)
        assert state == {}
    assert traits(network, (6,)) == Traits(has_state=False, is_random=False)


def arrays_of(workdir):
    return checkpoints_of(workdir).restore_latest(read_only=True)[0]


@pytest.mark.soak
def test_a_run_resumes_to_the_same_bits_is_loaded_and_exported(blobs, tmp_path):
    config = small_config(model="pair", ensemble_size=2)
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path / "run"))
    shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    newest = max((tmp_path / "resumed" / "checkpoints").iterdir(), key=lambda one: int(one.name))
    shutil.rmtree(newest)
    ensemble.train(config, data=blobs, workdir=str(tmp_path / "resumed"))
    jax.tree.map(
        np.testing.assert_array_equal, *(arrays_of(tmp_path / name) for name in ("resumed", "run"))
    )
    inputs = blobs["inputs"][:9]
    expected = result.predictor(inputs)
    loaded = ensemble.load(str(tmp_path / "run"))
    np.testing.assert_allclose(
        loaded(inputs).member_log_probs, expected.member_log_probs, rtol=1e-5
    )
    exported = jax.export.deserialize(bytearray(export(loaded))).call(inputs)
    np.testing.assert_allclose(exported["probs"], expected.probs, atol=1e-5)


@pytest.mark.soak
def test_the_number_of_devices_changes_nothing(blobs):
    one, eight = (
        ensemble.train(
            small_config(model="pair", ensemble_size=3, num_devices=num_devices), data=blobs
        ).predictor(blobs["inputs"])
        for num_devices in (1, 8)
    )
    np.testing.assert_allclose(eight.member_log_probs, one.member_log_probs, atol=1e-4)


@pytest.mark.soak
def test_it_is_sampled_under_a_prior_by_its_paths(blobs, tmp_path):
    config = {
        "model": "pair",
        "method": "hmc",
        "prior": "0/*=normal(0.5), */1=laplace(1), 2/0=normal(2)",
        "num_chains": 2,
        "num_devices": 2,
        "log_every_steps": 20,
        "sampler": {
            "step_size": 0.02,
            "num_leapfrog_steps": 5,
            "num_warmup": 20,
            "num_samples": 20,
        },
    }
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert result.report["test"]["scores"]["accuracy"]["value"] > 0.5
    assert ensemble.load(str(tmp_path))(blobs["inputs"][:4]).probs.shape == (4, 3)


@pytest.mark.parametrize(
    ("init", "apply", "line"),
    [
        (3, apply_layers, r"int as init.*init\(rng_key"),
        (init_layers, None, r"NoneType as apply"),
    ],
)
def test_what_is_no_function_is_refused(init, apply, line):
    with pytest.raises(UserError, match=line):
        networks.from_functions(init, apply)


def test_outputs_that_are_no_array_are_refused():
    network = networks.from_functions(init_layers, lambda params, inputs: [inputs])
    with pytest.raises(UserError, match="returns a list; it must return one array"):
        network.apply(network.init(KEY, INPUTS), INPUTS)


def test_a_bare_pair_is_told_what_to_write():
    networks.register("bare", lambda num_outputs: (init_layers, apply_layers))
    with pytest.raises(UserError, match=r"tuple.*ensemble.networks.from_functions"):
        networks.create("bare", 3)
