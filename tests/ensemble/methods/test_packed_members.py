"""Packed members: estimators that divide the units of a network, and share nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import classification

from ensemble import networks
from ensemble.data.dataset import dataset_from_arrays
from ensemble.methods.batch_ensemble import ALL, OWN, SharedWeights, nth, unfolded
from ensemble.networks import Packing, layers

NUM_ESTIMATORS = 3
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
@pytest.mark.parametrize(("model", "on_cpu"), [("mlp", True), ("mlp", False)])
def test_each_estimator_learns_by_its_own_loss_alone(model, on_cpu, monkeypatch):
    monkeypatch.setattr(layers, "on_cpu", lambda: on_cpu)
    plain, task = tasks(model)
    params = task.init_variables(jax.random.key(0))["params"]
    inputs = task.prepare(INPUTS)
    rng_key = jax.random.key(5)

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
    plain, task = tasks("mlp", widths=(16, 12))
    params = task.init_variables(jax.random.key(0))["params"]
    shapes = jax.tree.map(lambda leaf: {OWN: (NUM_ESTIMATORS, *leaf.shape)}, plain.params_shapes())
    assert jax.tree.map(jnp.shape, params) == shapes
    assert params["Dense_1"]["kernel"][OWN].shape == (NUM_ESTIMATORS, 2, 6, 4)
    for layer in params.values():
        kernel = np.asarray(layer["kernel"][OWN])
        assert len(np.unique(kernel, axis=0)) == NUM_ESTIMATORS
