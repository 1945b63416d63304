"""Members whose estimators share weights: unfolded, these are networks like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from flax import linen as nn
from run_parts import check_estimators

import ensemble
from ensemble import UserError, networks
from ensemble.methods.members.batch_ensemble_keys import ADAPTERS
from ensemble.methods.members.shared_weights import (
    COLUMNS,
    OWN,
    ROWS,
    SHARED,
    SharedWeights,
    estimators,
    nth,
    unfolded,
)
from ensemble.networks import layers
from ensemble.sources.dataset import dataset_from_arrays
from ensemble.tasks.supervised import Supervised, classification

NUM_ESTIMATORS = 3
CONFIG = small_config(method="batch_ensemble", model="mlp", ensemble_size=2, num_epochs=3) | {
    "mlp.widths": "16,12",
    "batch_ensemble.num_estimators": NUM_ESTIMATORS,
}
QUIET = {"show_progress": False}
INPUTS = np.random.default_rng(3).normal(size=(11, 8, 8, 1)).astype(np.float32)
LABELS = np.arange(11) % 3


def plain_task(model="mlp", **settings):
    images = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype(np.float32)
    dataset = dataset_from_arrays({"inputs": images, "labels": np.arange(60) % 3})
    return classification(dataset, networks.create(model, 3, settings))


def shared_task(adapters="rank_one", model="mlp", **settings):
    if model == "mlp":
        settings = {"widths": "16,12", **settings}
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
    expected = plain_task(widths="16,12").predict(network, INPUTS)["log_probs"]
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
            kernel, bias = layer["kernel"], layer["bias"][OWN][k]
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
    [
        *((name, "mlp", on_cpu) for name in ADAPTERS for on_cpu in (True, False)),
        ("rank_one", "cnn", True),
    ],
)
def test_each_estimator_learns_by_its_own_loss(adapters, model, on_cpu, monkeypatch):
    """The objective is the mean over networks; the gradient of what one has alone is its own."""
    monkeypatch.setattr(layers, "on_cpu", lambda: on_cpu)
    task = shared_task(adapters, model)
    plain = Supervised(task.dataset, task.network, task.likelihood)
    variables = moved(task.init_variables(jax.random.key(0)))
    inputs, rng_key = task.prepare(INPUTS), jax.random.key(5)

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

    found, expected = together(variables["params"]), apart(variables["params"])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(found[1]), jax.tree.leaves(expected[1]), strict=True
    ):
        times = 1 if path[-1].key == SHARED else NUM_ESTIMATORS
        np.testing.assert_allclose(a, times * b, rtol=2e-3, atol=5e-4)


@pytest.mark.parametrize("adapters", ADAPTERS)
def test_a_step_on_cpu_holds_the_kernels_of_one_estimator_at_a_time(adapters, monkeypatch):
    task = shared_task(adapters)
    params = task.init_variables(jax.random.key(0))["params"]
    inputs, rng_key = task.prepare(INPUTS), jax.random.key(5)
    of_all = f"f32[{NUM_ESTIMATORS},16,12]"

    def step():
        def loss(params):
            return task.log_likelihood({"params": params}, inputs, LABELS, True, rng_key)[0].sum()

        return str(jax.make_jaxpr(jax.grad(loss))(params))

    assert of_all not in step()
    if adapters == "tabm_mini":  # Which has no factors of it.
        return
    monkeypatch.setattr(layers, "on_cpu", lambda: False)
    assert of_all in step()


@pytest.mark.check
def test_state_is_each_estimators_own_in_both_forms(monkeypatch):
    class Normed(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, x, train):
            x = nn.Dense(16)(x.reshape((x.shape[0], -1)))
            x = nn.BatchNorm(use_running_average=not train)(x)
            return nn.Dense(self.num_outputs)(nn.relu(x))

    networks.register("normed", Normed)
    task = shared_task(model="normed")
    variables = moved(task.init_variables(jax.random.key(0)))
    inputs, rng_key, found = task.prepare(INPUTS), jax.random.key(5), []
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


@pytest.mark.check
def test_what_shares_nothing_is_learned_as_networks_of_their_own(blobs):
    """By SGD, whose steps are as long as gradients are: however many there are beside."""
    config = {key: one for key, one in CONFIG.items() if "mlp" not in key}
    config |= {"ensemble_size": 1, "weight_decay": 0.01, "model": "one_vector"}

    class OneVector(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, x):
            x = x.reshape((x.shape[0], -1))
            return self.param("bias", nn.initializers.zeros, (3,)) * x[:, :3] ** 2

    networks.register("one_vector", OneVector)
    found = ensemble.train(config, blobs, **QUIET).predictor.fitted.variables
    plain = {key: one for key, one in config.items() if "batch_ensemble" not in key}
    expected = ensemble.train(plain | {"method": "sgd"}, blobs, **QUIET).predictor.fitted.variables
    for one in found["params"]["bias"]:
        np.testing.assert_allclose(one, expected["params"]["bias"][0], rtol=1e-5)


@pytest.mark.check
def test_all_estimators_are_networks_to_begin_with(run):
    assert len(run[1].predictor.fitted.last_variables()["params"]["Dense_0"]["kernel"]) == 6


def test_networks_that_do_not_begin_with_a_dense_layer_have_no_adapters_of_tabm(blobs):
    with pytest.raises(UserError, match=r"batch_ensemble.adapters='tabm' is for networks that"):
        shared_task("tabm", "cnn")
    with pytest.raises(UserError, match="adapters='tabm_mini' is for networks that"):
        shared_task("tabm_mini", "logistic_regression")
    with pytest.raises(UserError, match="member_devices"):
        ensemble.train(CONFIG | {"member_devices": 2}, blobs, **QUIET)


@pytest.fixture(scope="module", params=ADAPTERS)
def run(request, tmp_path_factory):
    """A finished run: its workdir, and its result."""
    from small_runs import make_blobs

    workdir = tmp_path_factory.mktemp(request.param)
    config = CONFIG | {"batch_ensemble.adapters": request.param, "early_stopping_epochs": 2}
    return workdir, ensemble.train(config, make_blobs(), str(workdir), **QUIET)


@pytest.mark.check
def test_what_is_loaded_evaluated_and_exported_is_what_was_scored(run, blobs):
    check_estimators(*run, blobs, NUM_ESTIMATORS)


@pytest.mark.check
def test_a_member_stops_by_the_nll_of_its_mixture(blobs, monkeypatch):
    """At each epoch there is one number for a member, not one for an estimator."""
    from ensemble.methods.members import engine

    seen = []
    original = engine.member_terms
    monkeypatch.setattr(
        engine, "member_terms", lambda view, name: seen.append(original(view, name)) or seen[-1]
    )
    config = CONFIG | {"early_stopping_epochs": 5, "num_epochs": 2}
    result = ensemble.train(config, blobs, **QUIET)
    assert [len(one) for one in seen] == [2, 2]
    assert np.isfinite(seen).all()
    assert result.report["test"]["scores"]["accuracy"]["value"] > 0.5


@pytest.mark.check
def test_host_and_devices_unfold_alike():
    task = shared_task()
    members = [moved(task.init_variables(jax.random.key(k)), seed=k) for k in range(2)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *members)
    found = estimators(stacked)
    plain = Supervised(task.dataset, task.network, task.likelihood)
    for m, member in enumerate(members):
        expected = task.predict(member, INPUTS)["log_probs"]
        for k in range(NUM_ESTIMATORS):
            one = jax.tree.map(lambda leaf, row=m * NUM_ESTIMATORS + k: leaf[row], found)
            said = plain.predict(one, INPUTS)["log_probs"]
            np.testing.assert_allclose(said, expected[:, k], rtol=1e-4, atol=1e-5)


@pytest.mark.check
def test_numbers_of_the_mixture_are_reported():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(200, 4)).astype(np.float32)
    data = {"inputs": inputs, "targets": inputs[:, 0] + 0.1 * rng.normal(size=200)}
    config = CONFIG | {"likelihood": "gaussian", "num_epochs": 20, "optimizer": "adam"}
    config |= {"learning_rate": 0.01}
    result = ensemble.train(config, data, **QUIET)
    assert result.report["test"]["scores"]["rmse"]["value"] < 0.6
    arrays = result.predictor.member_arrays(inputs[:5])
    assert {len(one) for one in arrays.values()} == {2 * NUM_ESTIMATORS}
