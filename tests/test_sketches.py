"""The sketches do what they say, with nothing of the package changed for them."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from run_parts import mesh_of, over_chains, validated
from sketches.batch_ensemble import BatchEnsemble
from sketches.generated_source import Waves
from sketches.numpyro_model import NumPyroModel, logistic
from sketches.own_density import Ring
from sketches.sgd_with_state import step

import ensemble
from ensemble import networks, registry
from ensemble.fitted import Fitted
from ensemble.methods.mcmc.log_density import make_log_density
from ensemble.methods.walk.random_walk import RandomWalk
from ensemble.networks.linen import LinenNetwork
from ensemble.predictor import Predictor
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays, in_memory
from ensemble.tasks.learning_data import make_likelihood
from ensemble.tasks.supervised import Supervised, classification

KEY = jax.random.key(5)


@pytest.fixture
def dataset(blobs):
    return dataset_from_arrays(blobs)


class Noisy(nn.Module):
    """A network with batch statistics and dropout."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.Dropout(0.1, deterministic=not train)(nn.tanh(x)))


def test_sgd_learns_with_batch_statistics_and_dropout(dataset):
    task = classification(dataset, LinenNetwork(Noisy()), parse_prior("normal(1)"))
    assert task.traits[:2] == (True, True)
    inputs, targets = in_memory(dataset, "train")
    variables = first = task.init_variables(KEY)
    losses = []
    for t in range(30):
        key = jax.random.fold_in(KEY, t)
        variables, loss = step(task, variables, inputs, targets, key, 0.1)
        losses.append(loss)
    assert losses[-1] < 0.7 * losses[0]
    moved = jax.tree.map(
        lambda a, b: bool(jnp.any(a != b)), variables["batch_stats"], first["batch_stats"]
    )
    assert all(jax.tree.leaves(moved))
    log_prob, aux = task.log_likelihood(variables, task.prepare(inputs), targets)
    jax.tree.map(np.testing.assert_array_equal, aux.state["batch_stats"], variables["batch_stats"])
    assert -log_prob.mean() < losses[0]


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


def test_a_line_of_the_registry_makes_a_task_of_a_file(blobs, tmp_path, monkeypatch):
    """It is sampled, reported on and loaded; nothing else knows of it."""
    sketch = "sketches.numpyro_model"
    entry = registry.TaskEntry(
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


@pytest.mark.soak
def test_a_ring_is_walked_on():
    config = validated(
        {
            "method": "rwm",
            "num_chains": 512,
            "num_devices": 2,
            "log_every_steps": 200,
            "rwm": {"num_warmup": 192, "num_samples": 200},
        }
    )
    method = RandomWalk(config, Ring(2.0))
    state, _ = method.advance(method.init(KEY))
    while not method.finished(state):
        state, _ = method.advance(state)
    positions = np.asarray(state.walk.chains.position).transpose(0, 2, 1).reshape(-1, 2)[:512]
    distances = np.linalg.norm(positions, axis=1)
    assert distances.mean() == pytest.approx(2, abs=0.1)
    assert np.abs(positions.mean(axis=0)).max() < 0.3


def test_examples_that_are_made_when_they_are_read_are_learned():
    source = Waves(400)
    task = Supervised(source, networks.create("tiny", 2), make_likelihood(source, "gaussian"))
    assert task.describe()["num_examples"] == {"train": 400, "test": 40}
    inputs, targets = source.read("train", np.arange(64))
    variables, losses = task.init_variables(KEY), []
    for _ in range(20):
        variables, loss = step(task, variables, inputs, targets, KEY, 0.05)
        losses.append(loss)
    assert losses[-1] < losses[0]


def test_members_that_share_their_weights_predict(dataset):
    task = classification(dataset, networks.create("logistic_regression", 3))
    shared = jax.random.normal(KEY, (6, 3))
    own = {"r": jnp.ones((2, 6)), "s": jnp.ones((2, 3)), "b": jnp.zeros((2, 3))}
    own["r"] = own["r"].at[1].set(-1)
    ensemble = BatchEnsemble(task, shared)
    inputs = in_memory(dataset, "test").inputs
    predictor = Predictor(ensemble, Fitted.one_each({"params": own}), (0, 1))
    found = predictor.member_arrays(inputs)["log_probs"]
    for k, sign in enumerate((1, -1)):
        layer = {"kernel": sign * shared, "bias": jnp.zeros(3)}
        expected = task.predict({"params": {"Dense_0": layer}}, jnp.asarray(inputs))["log_probs"]
        np.testing.assert_allclose(found[k], expected, atol=1e-5)
    assert dataclasses.is_dataclass(ensemble.without_examples())
