"""Packed members: estimators that divide the units of a network, and share nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import check_estimators

import ensemble
from ensemble import UserError, networks
from ensemble.methods.members import engine_method
from ensemble.methods.members.shared_weights import ALL, OWN, SharedWeights, nth, unfolded
from ensemble.networks import Packing, layers
from ensemble.sources.dataset import dataset_from_arrays
from ensemble.tasks.supervised import classification

NUM_ESTIMATORS = 3
CONFIG = small_config(method="packed", model="mlp", ensemble_size=2, num_epochs=3) | {
    "mlp.widths": "16,12",
    "packed.num_estimators": NUM_ESTIMATORS,
    "packed.gamma": 2,
}
QUIET = {"show_progress": False}
INPUTS = np.random.default_rng(3).normal(size=(11, 8, 8, 1)).astype(np.float32)
LABELS = np.arange(11) % 3


def tasks(model, **settings):
    """Of one estimator, and of all."""
    images = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype(np.float32)
    dataset = dataset_from_arrays({"inputs": images, "labels": np.arange(60) % 3})
    packing = Packing(NUM_ESTIMATORS, 2.0, 2)
    plain = classification(dataset, networks.create(model, 3, settings, packing=packing))
    return plain, SharedWeights.of(plain, NUM_ESTIMATORS, ALL)


@pytest.mark.check
@pytest.mark.parametrize(("model", "on_cpu"), [("mlp", True), ("mlp", False), ("cnn", True)])
def test_each_estimator_learns_by_its_own_loss_alone(model, on_cpu, monkeypatch):
    monkeypatch.setattr(layers, "on_cpu", lambda: on_cpu)
    plain, task = tasks(model)
    params = task.init_variables(jax.random.key(0))["params"]
    inputs, rng_key = task.prepare(INPUTS), jax.random.key(5)

    def said(params):
        log_prob, aux = task.log_likelihood({"params": params}, inputs, LABELS, True, rng_key)
        assert aux.predicted["log_probs"].shape == (11, NUM_ESTIMATORS, 3)
        return log_prob.sum(), aux.predicted["log_probs"]

    gradients, log_probs = jax.grad(said, has_aux=True)(params)
    for k in range(NUM_ESTIMATORS):

        def of_one(params, k=k):
            variables = unfolded(nth({"params": params}, k))
            return plain.log_likelihood(variables, inputs, LABELS, True, rng_key)[0].sum()

        expected = jax.grad(of_one)(params)
        for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a[k], b[k], rtol=2e-3, atol=5e-4)
            assert (np.delete(np.asarray(b), k, axis=0) == 0).all()

        # What another estimator has does not matter to what this one says.
        def others(params, k=k):
            changed = jax.tree.map(lambda leaf: (leaf + 1).at[k].set(leaf[k]), params)
            return said(changed)[1][:, k]

        np.testing.assert_allclose(others(params), log_probs[:, k], rtol=1e-5, atol=1e-6)


@pytest.mark.check
def test_all_of_an_estimator_is_its_own_and_begins_by_itself():
    plain, task = tasks("mlp", widths="16,12")
    params = task.init_variables(jax.random.key(0))["params"]
    shapes = jax.tree.map(lambda leaf: {OWN: (NUM_ESTIMATORS, *leaf.shape)}, plain.params_shapes())
    assert jax.tree.map(jnp.shape, params) == shapes
    assert params["Dense_1"]["kernel"][OWN].shape == (NUM_ESTIMATORS, 2, 6, 4)
    for layer in params.values():
        kernel = np.asarray(layer["kernel"][OWN])
        assert len(np.unique(kernel, axis=0)) == NUM_ESTIMATORS


def test_on_cpu_all_estimators_are_one_product_of_columns():
    _, task = tasks("mlp", widths="16,12")
    variables = task.init_variables(jax.random.key(0))
    program = str(jax.make_jaxpr(lambda one: task.predict(one, INPUTS))(variables))
    assert "scan" not in program
    assert f"f32[{NUM_ESTIMATORS},12,11]" in program  # Units of the first layer by examples.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run: its workdir, and its result."""
    from small_runs import make_blobs

    workdir = tmp_path_factory.mktemp("packed")
    config = CONFIG | {"early_stopping_epochs": 2}
    return workdir, ensemble.train(config, make_blobs(), str(workdir), **QUIET)


@pytest.mark.check
def test_what_is_loaded_evaluated_and_exported_is_what_was_scored(run, blobs):
    check_estimators(*run, blobs, NUM_ESTIMATORS)


@pytest.mark.check
def test_estimators_are_networks_of_their_share_of_units(run):
    kernels = run[1].predictor.fitted.last_variables()["params"]
    # 2 / 3 of 16 and of 12, as multiples of 2.
    assert kernels["Dense_0"]["kernel"].shape[::2] == (6, 12)
    assert kernels["Dense_1"]["kernel"].shape == (6, 2, 6, 4)
    assert kernels["Dense_2"]["kernel"].shape == (6, 8, 3)


@pytest.mark.check
def test_memory_is_of_all_estimators(blobs, monkeypatch):
    seen = []
    monkeypatch.setattr(
        engine_method, "check_memory", lambda num_bytes, what, *_: seen.append(what)
    )
    ensemble.train(CONFIG | {"num_epochs": 1, "packed.gamma": 1}, blobs, **QUIET)
    features = blobs["inputs"][0].size
    one = features * 11 + 11 + 11 * 8 + 8 + 8 * 3 + 3
    assert seen == [f"config.ensemble_size=2 members of {3 * one:,} parameters"]


def test_what_packed_members_cannot_is_refused_in_a_line(blobs):
    with pytest.raises(UserError, match="member_devices"):
        ensemble.train(CONFIG | {"member_devices": 2}, blobs, **QUIET)
    config = {key: one for key, one in CONFIG.items() if "mlp" not in key}
    with pytest.raises(UserError, match="model='logistic_regression' is none"):
        ensemble.train(config | {"model": "logistic_regression"}, blobs, **QUIET)
