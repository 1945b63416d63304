"""Members whose estimators share weights: unfolded, these are networks like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from run_parts import classification

from ensemble import networks
from ensemble.config.pieces import path_of
from ensemble.data.dataset import dataset_from_arrays
from ensemble.methods.batch_ensemble import (
    COLUMNS,
    OWN,
    ROWS,
    SHARED,
    SharedWeights,
    nth,
    unfolded,
)
from ensemble.networks import layers
from ensemble.tasks.supervised import Supervised

NUM_ESTIMATORS = 3
INPUTS = np.random.default_rng(3).normal(size=(11, 8, 8, 1)).astype(np.float32)
LABELS = np.arange(11) % 3

ADAPTERS = ("rank_one", "tabm", "tabm_mini")


def plain_task(model="mlp", **settings):
    images = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype(np.float32)
    dataset = dataset_from_arrays({"inputs": images, "labels": np.arange(60) % 3})
    return classification(dataset, networks.create(model, 3, settings))


def shared_task(adapters="rank_one", model="mlp", **settings):
    if model == "mlp":
        settings = {"widths": (16, 12), **settings}
    return SharedWeights.of(plain_task(model, **settings), NUM_ESTIMATORS, adapters)


def leaves_by_name(variables):
    params = variables["params"]
    return {f"{layer}/{name}": params[layer][name] for layer in params for name in params[layer]}


def moved(variables, seed=1):
    """Variables after some training: no two numbers are alike."""
    leaves, structure = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


@pytest.mark.check
def test_with_factors_of_one_estimators_are_copies_of_the_network():
    task = shared_task()
    variables = task.init_variables(jax.random.key(0))
    for layer in variables["params"].values():
        layer["kernel"] |= {part: jnp.ones_like(layer["kernel"][part]) for part in (ROWS, COLUMNS)}
    found = task.predict(variables, INPUTS)["log_probs"]
    assert found.shape == (11, NUM_ESTIMATORS, 3)
    network = {
        "params": {
            name: {"kernel": layer["kernel"][SHARED], "bias": layer["bias"][OWN][0]}
            for name, layer in variables["params"].items()
        }
    }
    expected = plain_task(widths=(16, 12)).predict(network, INPUTS)["log_probs"]
    for k in range(NUM_ESTIMATORS):
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.check
def test_an_estimator_scales_what_goes_into_its_layers_and_comes_out():
    """As Wen et al. have it: ((x * r) @ W) * s + b, layer by layer."""
    task = shared_task()
    variables = moved(task.init_variables(jax.random.key(0)))
    found = task.predict(variables, INPUTS)["log_probs"]
    for k in range(NUM_ESTIMATORS):
        x = np.asarray(task.prepare(INPUTS)).reshape(len(INPUTS), -1)
        for i in range(3):
            layer = variables["params"][f"Dense_{i}"]
            kernel = layer["kernel"]
            bias = layer["bias"][OWN][k]
            x = ((x * kernel[ROWS][k]) @ kernel[SHARED]) * kernel[COLUMNS][k] + bias
            x = np.maximum(x, 0) if i < 2 else x
        expected = jax.nn.log_softmax(x)
        np.testing.assert_allclose(found[:, k], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.check
def test_a_convolution_is_scaled_by_channels():
    task = shared_task(model="cnn")
    variables = moved(task.init_variables(jax.random.key(0)))
    first = variables["params"]["Conv_0"]["kernel"]
    one = unfolded(nth(variables, 1))["params"]["Conv_0"]["kernel"]
    assert first[ROWS].shape == (NUM_ESTIMATORS, 1)
    images = jnp.asarray(INPUTS)
    by_channels = (
        networks.layers.conv(images * first[ROWS][1], first[SHARED], ((1, 1), (1, 1)))
        * (first[COLUMNS][1])
    )
    found = networks.layers.conv(images, one, ((1, 1), (1, 1)))
    np.testing.assert_allclose(found, by_channels, rtol=1e-4, atol=1e-5)


@pytest.mark.check
@pytest.mark.parametrize(
    ("adapters", "model", "on_cpu"),
    [("rank_one", "cnn", True), ("tabm", "mlp", False)],
)
def test_each_estimator_learns_by_its_own_loss(adapters, model, on_cpu, monkeypatch):
    """The objective is the mean over networks; the gradient of what one has alone is its own."""
    monkeypatch.setattr(layers, "on_cpu", lambda: on_cpu)
    task = shared_task(adapters, model)
    plain = Supervised(task.dataset, task.network, task.likelihood)
    variables = moved(task.init_variables(jax.random.key(0)))
    inputs = task.prepare(INPUTS)
    rng_key = jax.random.key(5)

    @jax.value_and_grad
    def together(params):
        log_prob, aux = task.log_likelihood({"params": params}, inputs, LABELS, True, rng_key)
        assert aux.predicted["log_probs"].shape == (11, NUM_ESTIMATORS, 3)
        return log_prob.sum()

    @jax.value_and_grad
    def apart(params):
        each = [
            plain.log_likelihood(
                unfolded(nth({"params": params}, k)), inputs, LABELS, True, rng_key
            )[0]
            for k in range(NUM_ESTIMATORS)
        ]
        return sum(one.sum() for one in each) / NUM_ESTIMATORS

    found = together(variables["params"])
    expected = apart(variables["params"])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(found[1]), jax.tree.leaves(expected[1]), strict=True
    ):
        times = 1 if path[-1].key == SHARED else NUM_ESTIMATORS
        np.testing.assert_allclose(a, times * b, rtol=2e-3, atol=5e-4)


@pytest.mark.check
def test_state_is_each_estimators_own_in_both_forms(monkeypatch):
    class Normed(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, x, train):
            x = nn.Dense(16)(x.reshape((x.shape[0], -1)))
            x = nn.BatchNorm(use_running_average=not train)(x)
            return nn.Dense(self.num_outputs)(nn.relu(x))

    task = shared_task(model=path_of(Normed))
    variables = moved(task.init_variables(jax.random.key(0)))
    inputs = task.prepare(INPUTS)
    rng_key = jax.random.key(5)
    found = []
    for on_cpu in (True, False):
        monkeypatch.setattr(layers, "on_cpu", lambda on_cpu=on_cpu: on_cpu)
        found.append(task.log_likelihood(variables, inputs, LABELS, True, rng_key))
    (log_probs, aux), (expected, expected_aux) = found
    np.testing.assert_allclose(log_probs, expected, rtol=1e-4)
    mean = aux.state["batch_stats"]["BatchNorm_0"]["mean"]
    assert mean.shape == (NUM_ESTIMATORS, 16)
    expected_mean = expected_aux.state["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-4, atol=1e-5)


def test_what_tabm_shares():
    found = {
        adapters: {
            name: tuple(parts)
            for name, parts in leaves_by_name(
                shared_task(adapters).init_variables(jax.random.key(0))
            ).items()
        }
        for adapters in ADAPTERS
    }
    factors = (SHARED, ROWS, COLUMNS)
    last = {"Dense_2/kernel": (OWN,), "Dense_2/bias": (OWN,)}
    biases = {"Dense_0/bias": (OWN,), "Dense_1/bias": (OWN,)}
    kernels = {"Dense_0/kernel": factors, "Dense_1/kernel": factors}
    assert found["rank_one"] == {
        **kernels,
        **biases,
        "Dense_2/kernel": factors,
        "Dense_2/bias": (OWN,),
    }
    assert found["tabm"] == {**kernels, **biases, **last}
    assert found["tabm_mini"] == {
        "Dense_0/kernel": (SHARED, ROWS),
        "Dense_1/kernel": (SHARED,),
        **dict.fromkeys(biases, (SHARED,)),
        **last,
    }


def test_factors_start_as_signs_where_estimators_begin_to_differ():
    first = shared_task("tabm").init_variables(jax.random.key(0))["params"]
    assert set(np.unique(first["Dense_0"]["kernel"][ROWS])) == {-1, 1}
    for layer, part in (("Dense_0", COLUMNS), ("Dense_1", ROWS), ("Dense_1", COLUMNS)):
        assert (np.asarray(first[layer]["kernel"][part]) == 1).all()
    other = shared_task("tabm").init_variables(jax.random.key(1))["params"]
    assert (other["Dense_0"]["kernel"][ROWS] != first["Dense_0"]["kernel"][ROWS]).any()
    whole = shared_task().init_variables(jax.random.key(0))["params"]
    for layer in whole.values():
        for part in (ROWS, COLUMNS):
            assert set(np.unique(layer["kernel"][part])) == {-1, 1}
    assert len(np.unique(whole["Dense_1"]["kernel"][COLUMNS], axis=0)) == NUM_ESTIMATORS
