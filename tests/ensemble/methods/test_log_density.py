"""The log density over shards against float64 on one device, and the trap that it avoids."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from run_parts import classification, mesh_of, over_chains

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.methods.log_density import make_log_density, sum_of_examples
from ensemble.networks.linen import LinenNetwork
from ensemble.priors import parse_prior

NUM_CLASSES = 3


def make_task(num_examples=203, model="logistic_regression", prior="normal(0.7)"):
    rng = np.random.default_rng(0)
    labels = rng.integers(NUM_CLASSES, size=num_examples)
    inputs = rng.normal(size=(num_examples, 6)) + 0.3 * labels[:, None]
    data = {"train_inputs": inputs, "train_labels": labels, "class_names": list("abc")}
    dataset = dataset_from_arrays(data, hold_out=False)
    network = networks.create(model, NUM_CLASSES)
    return classification(dataset, network, parse_prior(prior))


def random_params(seed=0, scale=1.0):
    keys = np.random.default_rng(seed)
    return {
        "Dense_0": {
            "kernel": jnp.asarray(scale * keys.normal(size=(6, NUM_CLASSES)), jnp.float32),
            "bias": jnp.asarray(scale * keys.normal(size=NUM_CLASSES), jnp.float32),
        }
    }


def oracle(task, params):
    """Value and gradient of the regression, by hand, in float64."""
    inputs, labels = task.dataset.splits["train"]
    x = (inputs.astype(np.float64) - task.dataset.shift) * task.dataset.scale
    w, b = (np.asarray(params["Dense_0"][name], np.float64) for name in ("kernel", "bias"))
    log_probs = scipy.special.log_softmax(x @ w + b, axis=1)
    residual = np.eye(NUM_CLASSES)[labels] - np.exp(log_probs)
    value = log_probs[np.arange(len(labels)), labels].sum()
    value -= 0.5 * ((w**2).sum() + (b**2).sum()) / 0.7**2
    return value, {"kernel": x.T @ residual - w / 0.49, "bias": residual.sum(axis=0) - b / 0.49}


def density_of(task, mesh, temperature=1.0):
    """The density with its data bound, for eager use."""
    density = make_log_density(task, task.dataset.splits["train"], mesh, temperature)
    return density.bind(density.data)


@pytest.mark.parametrize("num_shards", [1, 8])
@pytest.mark.parametrize("num_examples", [200, 203])
def test_value_and_gradient_match_float64(num_shards, num_examples):
    task = make_task(num_examples)
    density = density_of(task, mesh_of(1, num_shards))
    params = random_params()
    value, grads = jax.jit(jax.value_and_grad(density))(params)
    expected, expected_grads = oracle(task, params)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    for name, expected_grad in expected_grads.items():
        scale = np.abs(expected_grad).max()
        np.testing.assert_allclose(grads["Dense_0"][name], expected_grad, atol=1e-5 * scale)


@pytest.mark.check
@pytest.mark.parametrize(("groups", "shards"), [(2, 4)])
def test_chains_are_vmapped_over_their_axis(groups, shards):
    task = make_task()
    density = density_of(task, mesh_of(groups, shards))
    chains = [random_params(seed) for seed in range(8)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *chains)
    mapped = over_chains(jax.value_and_grad(density))
    values, grads = jax.jit(mapped)(stacked)
    for k, params in enumerate(chains):
        expected, expected_grads = oracle(task, params)
        assert float(values[k]) == pytest.approx(expected, rel=1e-6)
        scale = np.abs(expected_grads["kernel"]).max()
        np.testing.assert_allclose(
            grads["Dense_0"]["kernel"][k], expected_grads["kernel"], atol=1e-5 * scale
        )


@pytest.mark.check
def test_blocks_of_examples_add_up_to_the_whole():
    """Two chains on each of two devices."""
    shards = 1
    num_chains = 4
    task = make_task(model="mlp")
    mesh = mesh_of(2, shards)
    split = task.dataset.splits["train"]
    keys = jax.random.split(jax.random.key(0), num_chains)
    params = jax.vmap(task.init_variables)(keys)["params"]
    found = []
    for block_size in (None, 8):
        own = sum_of_examples(task, split, mesh, block_size)
        data = own.place()
        mapped = over_chains(own.value_and_grad, (0, None))
        found.append(jax.jit(mapped)(params, data))
    assert len(data.mask) // shards > 8
    assert len(data.mask) % shards == 0
    whole, in_blocks = map(jax.tree.leaves, found)
    for one, other in zip(whole, in_blocks, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * np.abs(one).max())


@pytest.mark.check
def test_the_temperature_is_of_the_likelihood_alone():
    task = make_task()
    mesh = mesh_of(1, 2)
    params = random_params()
    cold = density_of(task, mesh, temperature=0.5)(params)
    bayes = density_of(task, mesh)(params)
    prior = task.log_prior(params)
    assert float(cold - prior) == pytest.approx(2 * float(bayes - prior), rel=1e-5)


def test_a_nan_shows():
    task = make_task()
    density = density_of(task, mesh_of(1, 4))
    params = random_params()
    params["Dense_0"]["bias"] = params["Dense_0"]["bias"].at[0].set(jnp.nan)
    assert np.isnan(jax.jit(density)(params))


def test_examples_lie_on_their_shards_and_nowhere_else():
    task = make_task(200)
    density = make_log_density(task, task.dataset.splits["train"], mesh_of(1, 8))
    run = jax.jit(lambda params, data: jax.value_and_grad(density.bind(data))(params))
    compiled = run.lower(random_params(), density.data).compile().as_text()
    assert "all-reduce" in compiled
    assert "all-gather" not in compiled
    assert "f32[25,7]" in compiled  # 200 examples on 8 shards, and the 1 of the bias.
    assert "f32[200,7]" not in compiled


def test_products_are_of_the_highest_precision_in_both_directions():
    task = make_task()
    density = density_of(task, mesh_of(1, 2))
    jaxpr = str(jax.make_jaxpr(jax.value_and_grad(density))(random_params()))
    assert jaxpr.count("dot_general") == 2  # x w, and x' r for the gradient.
    assert "HIGHEST" in jaxpr
    assert "precision=None" not in jaxpr


@pytest.mark.check
def test_padding_is_no_input_of_zeros():
    """Whose gradient may be NaN, which no mask takes away."""

    class Direction(nn.Module):
        num_classes: int

        @nn.compact
        def __call__(self, x):
            x = nn.Dense(2, use_bias=False)(x)
            return nn.Dense(self.num_classes)(x / jnp.linalg.norm(x, axis=-1, keepdims=True))

    task = dataclasses.replace(make_task(), network=LinenNetwork(Direction(NUM_CLASSES)))
    mean = jnp.asarray(task.dataset.shift)  # What would be zero for the network.
    params = task.network.init(jax.random.key(0), mean[None] + 1)["params"]
    grads = [jax.grad(density_of(task, mesh_of(1, n)))(params) for n in (1, 8)]
    for one, eight in zip(*map(jax.tree.leaves, grads), strict=True):
        np.testing.assert_allclose(one, eight, rtol=1e-3, atol=1e-3)
