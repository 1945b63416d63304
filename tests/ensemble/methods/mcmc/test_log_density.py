"""The log density over shards against float64 on one device, and the trap that it avoids."""

import dataclasses
import functools
import types

import blackjax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from run_parts import mesh_of, over_chains

from ensemble import UserError, networks
from ensemble.methods.mcmc.log_density import (
    TPU_BLOCK_SIZE,
    make_log_density,
    suitable_block_size,
)
from ensemble.networks.linen import LinenNetwork
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification

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


@pytest.mark.parametrize("num_shards", [1, 2, 4, 8])
@pytest.mark.parametrize("num_examples", [8, 200, 203])
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


def test_the_naive_pmap_version_is_wrong():
    """A psum inside what is differentiated: kept here so that nobody brings it back."""
    task = make_task(200)
    inputs, labels = task.dataset.splits["train"]
    shards = [part.reshape(8, 25, *part.shape[1:]) for part in (inputs, labels)]

    def naive(params, inputs, labels):
        log_probs = task.predict({"params": params}, inputs)["log_probs"]
        likelihood = jnp.take_along_axis(log_probs, labels[:, None], axis=-1).sum()
        return jax.lax.psum(likelihood, "shards") + task.log_prior(params)

    params = random_params()
    mapped = jax.pmap(jax.value_and_grad(naive), axis_name="shards", in_axes=(None, 0, 0))
    value, grads = mapped(params, *shards)
    expected, expected_grads = oracle(task, params)
    assert float(value[0]) == pytest.approx(expected, rel=1e-5)  # The value is right ...
    error = np.abs(grads["Dense_0"]["kernel"][0] - expected_grads["kernel"]).max()
    assert error > 0.1 * np.abs(expected_grads["kernel"]).max()  # ... the gradient is not.


@pytest.mark.parametrize(("groups", "shards"), [(1, 1), (2, 4), (4, 2), (8, 1)])
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
@pytest.mark.parametrize(("groups", "shards", "num_chains"), [(1, 2, 1), (2, 4, 2), (2, 1, 4)])
def test_blocks_of_examples_add_up_to_the_whole(groups, shards, num_chains):
    """Chains that share a device, that have several each, and one without a vmap."""
    task, mesh = make_task(model="mlp"), mesh_of(groups, shards)
    split = task.dataset.splits["train"]
    keys = jax.random.split(jax.random.key(0), num_chains)
    params = jax.vmap(task.init_variables)(keys)["params"]
    if num_chains == 1:
        params = jax.tree.map(lambda leaf: leaf[0], params)
    found = []
    for block_size in (None, 8):
        density = make_log_density(task, split, mesh, block_size=block_size)
        function = jax.value_and_grad(density.bind(density.data))
        found.append(jax.jit(over_chains(function) if num_chains > 1 else function)(params))
    assert len(density.data.mask) // shards > 8
    assert len(density.data.mask) % shards == 0
    whole, in_blocks = map(jax.tree.leaves, found)
    for one, other in zip(whole, in_blocks, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * np.abs(one).max())


def test_only_tpus_convolve_in_blocks():
    tpus = types.SimpleNamespace(devices=np.array([types.SimpleNamespace(platform="tpu")]))
    images = {"train_inputs": np.zeros((9, 4, 4, 1), np.uint8), "train_labels": np.arange(9) % 3}
    dataset = dataset_from_arrays(images, hold_out=False)
    cnn, mlp = (
        classification(dataset, networks.create(name, NUM_CLASSES), parse_prior("normal(1)"))
        for name in ("cnn", "mlp")
    )
    assert suitable_block_size(cnn, tpus) == TPU_BLOCK_SIZE
    assert suitable_block_size(mlp, tpus) is None
    assert suitable_block_size(cnn, mesh_of(1, 1)) is None


@pytest.mark.soak
def test_the_temperature_is_of_the_likelihood_alone():
    task = make_task()
    mesh, params = mesh_of(1, 2), random_params()
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


@pytest.mark.soak
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


@functools.cache
def hmc_positions(groups, shards):
    task = make_task()
    density = make_log_density(task, task.dataset.splits["train"], mesh_of(groups, shards))

    def chain(rng_key, params, data):
        kernel = blackjax.hmc(
            density.bind(data),
            step_size=0.02,
            inverse_mass_matrix=jnp.ones(21),
            num_integration_steps=10,
        )

        def step(state, t):
            state, info = kernel.step(jax.random.fold_in(rng_key, t), state)
            return state, (state.position, info.acceptance_rate)

        return jax.lax.scan(step, kernel.init(params), jnp.arange(20))[1]

    params = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(random_params(seed, 0.1) for seed in range(2))
    )
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    chains = over_chains(chain, in_axes=(0, 0, None))
    return jax.jit(chains)(keys, params, density.data)


@pytest.mark.check
@pytest.mark.parametrize(("groups", "shards"), [(1, 2), (1, 8), (2, 4)])
def test_blackjax_draws_the_same_on_any_devices(groups, shards):
    positions, acceptance = hmc_positions(groups, shards)
    expected, expected_acceptance = hmc_positions(1, 1)
    assert np.mean(expected_acceptance) > 0.5
    for ours, theirs in zip(jax.tree.leaves(positions), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours[:, :5], theirs[:, :5], atol=1e-4)
    np.testing.assert_allclose(acceptance[:, :5], expected_acceptance[:, :5], atol=1e-3)


def test_what_has_no_likelihood_of_its_own_is_refused():
    task = make_task()
    split = task.dataset.splits["train"]
    with pytest.raises(UserError, match=r"3 examples.*spread.*8 shards.*3"):
        make_log_density(
            task, split._replace(inputs=split.inputs[:3], targets=split.targets[:3]), mesh_of(1, 8)
        )
    for temperature in (0, float("inf")):
        with pytest.raises(UserError, match=f"temperature={temperature}"):
            make_log_density(task, split, mesh_of(1, 1), temperature)
    with pytest.raises(UserError, match=r"3 groups.*chains.*4 shards.*12 devices.*8"):
        mesh_of(3, 4)

    class Dropout(nn.Module):
        num_classes: int

        @nn.compact
        def __call__(self, x, train: bool):
            return nn.Dense(self.num_classes)(nn.Dropout(0.5, deterministic=not train)(x))

    noisy = dataclasses.replace(task, network=LinenNetwork(Dropout(NUM_CLASSES)))
    with pytest.raises(UserError, match=r"batch statistics.*dropout"):
        make_log_density(noisy, split, mesh_of(1, 1))


def test_the_mesh_has_its_axes():
    mesh = mesh_of(2, 4)
    assert dict(mesh.shape) == {"ensemble": 2, "data": 4, "model": 1}
