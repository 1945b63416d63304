"""Starts: a MAP whose gradient is zero, and for models places away from it on every scale."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from density_task import DensityTask
from run_parts import classification, mesh_of

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.methods import start
from ensemble.methods.log_density import make_log_density
from ensemble.methods.start import find_map
from ensemble.priors import parse_prior

SHAPES = {
    "Dense_0": {
        "kernel": jax.ShapeDtypeStruct((6, 3), jnp.float32),
        "bias": jax.ShapeDtypeStruct((3,), jnp.float32),
    }
}
SCALES = np.array([1e-3, 1.0, 20.0], np.float32)
CENTRE = np.array([1.0, -2.0, 50.0], np.float32)
CHAINS = 8


def make_task(blobs, prior="normal(0.7)", model="logistic_regression"):
    data = {f"train_{name}": values for name, values in blobs.items()}
    network = networks.create(model, 3)
    return classification(
        dataset_from_arrays(data | {"class_names": list("abc")}, hold_out=False),
        network,
        parse_prior(prior),
    )


def make_density(task, num_shards=2):
    mesh = mesh_of(1, num_shards)
    return make_log_density(task, task.dataset.splits["train"], mesh)


def exact_map(task):
    """In float64, by SciPy's Newton-CG."""
    inputs, labels = task.dataset.splits["train"]
    x = (inputs.astype(np.float64) - task.dataset.shift) * task.dataset.scale
    x = np.pad(x, ((0, 0), (0, 1)), constant_values=1)

    def energy(flat):
        w = flat.reshape(7, 3)
        log_probs = scipy.special.log_softmax(x @ w, axis=1)
        residual = np.eye(3)[labels] - np.exp(log_probs)
        value = -log_probs[np.arange(len(labels)), labels].sum() + 0.5 * (w**2).sum() / 0.49
        return value, (-x.T @ residual + w / 0.49).ravel()

    return scipy.optimize.minimize(energy, np.zeros(21), jac=True, method="BFGS").x.reshape(7, 3)


@pytest.mark.check
def test_the_map_is_the_maximum(blobs):
    task = make_task(blobs)
    found = find_map(task, make_density(task))["Dense_0"]
    expected = exact_map(task)
    np.testing.assert_allclose(found["kernel"], expected[:-1], atol=1e-3)
    np.testing.assert_allclose(found["bias"], expected[-1], atol=1e-3)


@pytest.mark.check
def test_chains_that_start_at_the_map_are_overdispersed(blobs):
    task = make_task(blobs)
    density = make_density(task)
    found = find_map(task, density)
    starts = start.spread(density, found, jax.random.split(jax.random.key(0), 64))["Dense_0"]
    inputs, _ = task.dataset.splits["train"]
    inputs = (inputs - task.dataset.shift) * task.dataset.scale
    probs = scipy.special.softmax(inputs @ found["Dense_0"]["kernel"] + found["Dense_0"]["bias"], 1)
    curvature = (probs * (1 - probs)).sum(axis=0) + 1 / 0.49
    spread = (starts["bias"] - found["Dense_0"]["bias"]).std(axis=0)
    np.testing.assert_allclose(spread * np.sqrt(curvature), start.SPREAD, rtol=0.3)


def narrow(x):
    return -0.5 * jnp.sum(jnp.square((x - CENTRE) / SCALES))


def starts(logdensity_fn, num_dims, init_from, num_chains=CHAINS):
    model = DensityTask(logdensity_fn, num_dims)
    config = types.SimpleNamespace(init_from=init_from, num_chains=num_chains, model="a density")
    density = model.own_log_density(mesh_of(1), False)
    return start.starts_of_model(
        config, model, density, jax.random.split(jax.random.key(2), num_chains)
    )


@pytest.mark.check
def test_starts_are_several_deviations_away_whatever_the_scales():
    found = starts(narrow, 3, "pathfinder")["x"]
    away = (found - CENTRE) / SCALES
    np.testing.assert_allclose(np.sqrt(np.mean(away**2, axis=0)), start.SPREAD, rtol=0.5)
    assert len(np.unique(away[:, 1])) == CHAINS
