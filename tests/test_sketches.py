"""The sketches do what they say, with nothing of the package changed for them."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sketches.batch_ensemble import BatchEnsemble
from sketches.generated_source import Waves
from sketches.sgd_with_state import step

from ensemble import networks
from ensemble.fitted import Fitted
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


@pytest.mark.check
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
