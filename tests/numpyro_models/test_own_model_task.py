"""A model of NumPyro that predicts, as a task of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from own_model_task import NumPyroModel, logistic
from run_parts import mesh_of, over_chains

import ensemble
from ensemble import registry
from ensemble.entries import TaskEntry
from ensemble.fitted import Fitted
from ensemble.methods.mcmc.log_density import make_log_density
from ensemble.predictor import Predictor
from ensemble.sources import dataset_from_arrays, in_memory
from ensemble.tasks.learning_data import make_likelihood

KEY = jax.random.key(5)


@pytest.fixture
def dataset(blobs):
    return dataset_from_arrays(blobs)


@pytest.mark.soak
def test_a_numpyro_model_is_sampled_on_many_devices(dataset):
    task = NumPyroModel(logistic, dataset, make_likelihood(dataset))
    split, mesh = in_memory(dataset, "train"), mesh_of(2, 4)
    density = make_log_density(task, split, mesh)
    params = jax.vmap(task.sample_prior)(jax.random.split(KEY, 2))
    found, grads = jax.jit(
        lambda params, data: over_chains(jax.value_and_grad(density.bind(data)))(params)
    )(params, density.data)
    assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, params)
    one = jax.tree.map(lambda leaf: leaf[1], params)
    values = {"scale": jnp.exp(one["scale"]), "kernel": one["kernel"]}
    expected, _ = log_density(logistic, tuple(map(jnp.asarray, split)), {}, values)
    np.testing.assert_allclose(found[1], expected + one["scale"], rtol=1e-5)
    predictor = Predictor(task, Fitted.one_each({"params": params}), (0, 1))
    assert predictor(split.inputs[:7]).probs.shape == (7, 3)


@pytest.mark.check
def test_a_line_of_the_registry_makes_a_task_of_a_file(blobs, tmp_path, monkeypatch):
    """It is sampled, reported on and loaded; nothing else knows of it."""
    sketch = "own_model_task"
    entry = TaskEntry(
        f"{sketch}:create",
        registry.TASKS["supervised"].block,
        f"{sketch}:restore",
        models=("scaled_logistic",),
        methods=("hmc",),
    )
    monkeypatch.setitem(registry.TASKS.registered, "scaled_logistic", entry)
    config = {
        "method": "hmc",
        "model": "scaled_logistic",
        "num_chains": 2,
        "num_devices": 2,
        "log_every_steps": 40,
        "sampler": {"num_warmup": 40, "num_samples": 40, "thin": 10, "num_leapfrog_steps": 4},
    }
    result = ensemble.train(config, blobs, str(tmp_path), show_progress=False)
    assert result.report["test"]["scores"]["accuracy"]["value"] > 0.6
    found = ensemble.load(tmp_path)(blobs["inputs"][:9]).probs
    np.testing.assert_allclose(found, result.predictor(blobs["inputs"][:9]).probs, atol=1e-6)
