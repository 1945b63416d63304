"""Starts: a MAP whose gradient is zero, and for models places away from it on every scale."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from density_task import DensityTask
from run_parts import mesh_of, validated

from ensemble import UserError, networks
from ensemble.methods.mcmc import start
from ensemble.methods.mcmc.log_density import log_density_of_model, make_log_density
from ensemble.methods.mcmc.start import find_map
from ensemble.predictor import Restored
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification

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
@pytest.mark.parametrize("num_shards", [1, 8])
def test_the_map_is_the_maximum(blobs, num_shards):
    task = make_task(blobs)
    found = find_map(task, make_density(task, num_shards), SHAPES)["Dense_0"]
    expected = exact_map(task)
    np.testing.assert_allclose(found["kernel"], expected[:-1], atol=1e-3)
    np.testing.assert_allclose(found["bias"], expected[-1], atol=1e-3)


@pytest.mark.soak
def test_another_network_ends_at_a_zero_of_its_gradient_and_again_at_the_same(blobs):
    task = make_task(blobs, model="tiny")
    density = make_density(task)
    shapes = jax.eval_shape(
        lambda: task.network.init(jax.random.key(0), jnp.zeros((1, 6)))["params"]
    )
    found, again = find_map(task, density, shapes), find_map(task, density, shapes)
    jax.tree.map(np.testing.assert_array_equal, found, again)
    logdensity_fn = density.bind(density.data)
    grads = jax.grad(logdensity_fn)(found)
    at_zero = jax.grad(logdensity_fn)(jax.tree.map(lambda leaf: 0.1 + 0 * leaf, found))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(at_zero))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads)) < 0.02 * largest


@pytest.mark.check
def test_chains_that_start_at_the_map_are_overdispersed(blobs):
    task = make_task(blobs)
    density = make_density(task)
    found = find_map(task, density, SHAPES)
    starts = start.spread(density, found, jax.random.split(jax.random.key(0), 64))["Dense_0"]
    inputs, _ = task.dataset.splits["train"]
    inputs = (inputs - task.dataset.shift) * task.dataset.scale
    probs = scipy.special.softmax(inputs @ found["Dense_0"]["kernel"] + found["Dense_0"]["bias"], 1)
    curvature = (probs * (1 - probs)).sum(axis=0) + 1 / 0.49
    spread = (starts["bias"] - found["Dense_0"]["bias"]).std(axis=0)
    np.testing.assert_allclose(spread * np.sqrt(curvature), start.SPREAD, rtol=0.3)


@pytest.mark.check
def test_progress_is_logged(blobs, caplog):
    caplog.set_level("INFO", logger="ensemble")
    task = make_task(blobs, model="tiny")
    params = task.network.init(jax.random.key(0), jnp.zeros((1, 6)))["params"]
    find_map(task, make_density(task), params, max_iterations=60)
    assert "MAP: iteration 50, log density" in caplog.messages[0]
    assert "after 60 iterations" in caplog.messages[1]


def test_what_cannot_be_started_from_is_refused_before_the_search(blobs, monkeypatch):
    monkeypatch.setattr(start, "find_map", lambda *_: pytest.fail("The MAP was searched."))
    config = validated(
        {
            "method": "hmc",
            "model": "logistic_regression",
            "prior": "normal(0.7)",
            "init_from": "/dev/null",
            "sampler": {"mass": "kronecker"},
        }
    )
    task = make_task(blobs)
    with pytest.raises(UserError, match="init_from='/dev/null': /dev/null"):
        start.starting_points(config, task, make_density(task), jax.random.split(jax.random.key(0)))


def test_members_of_another_activation_are_no_start(blobs, monkeypatch):
    """Whose parameters have the same shapes."""
    config = {"method": "hmc", "model": "mlp", "init_from": "elsewhere"}
    theirs = Restored({**config, "mlp": {"activation": "tanh"}}, None, {}, 0, {}, [0], {})
    monkeypatch.setattr(start, "restore", lambda work: theirs)
    with pytest.raises(UserError, match=r"{'activation': 'tanh'}"):
        start.members_of(validated(config), make_task(blobs), SHAPES)


def test_a_chain_starts_from_a_file_that_has_all_of_its_parameters(blobs, tmp_path):
    file, task = tmp_path / "w.npz", make_task(blobs)
    arrays = {"Dense_0/kernel": np.arange(18.0).reshape(6, 3), "Dense_0/bias": np.ones(3)}
    np.savez(file, **arrays)
    config = {"method": "hmc", "model": "logistic_regression", "init_from": str(file)}
    found = start.members_of(validated(config | {"num_chains": 1}), task, SHAPES)
    np.testing.assert_array_equal(found["Dense_0"]["kernel"][0], arrays["Dense_0/kernel"])
    np.testing.assert_array_equal(found["Dense_0"]["bias"], np.ones((1, 3)))
    with pytest.raises(UserError, match=r"w.npz' .*4 chains.*config.num_chains=1"):
        start.members_of(validated(config), task, SHAPES)
    np.savez(file, **arrays | {"Dense_0/bias": np.array([0, np.nan, 0])})
    with pytest.raises(UserError, match=r"Dense_0/bias has NaN"):
        start.members_of(validated(config | {"num_chains": 1}), task, SHAPES)
    np.savez(file, **{"Dense_0/kernel": np.ones((6, 3))})
    with pytest.raises(UserError, match=r"w.npz' .*Dense_0/bias \[3\] is missing"):
        start.members_of(validated(config | {"num_chains": 1}), task, SHAPES)


def test_a_start_that_is_not_finite_is_refused(blobs):
    task = make_task(blobs)
    density = make_density(task)
    broken = dataclasses.replace(
        density, bind=lambda data: lambda params: jnp.nan * density.bind(data)(params)
    )
    with pytest.raises(UserError, match=r"not finite.*search"):
        find_map(task, broken, SHAPES)


def narrow(x):
    return -0.5 * jnp.sum(jnp.square((x - CENTRE) / SCALES))


def starts(logdensity_fn, num_dims, init_from, num_chains=CHAINS):
    model = DensityTask(logdensity_fn, num_dims)
    config = types.SimpleNamespace(init_from=init_from, num_chains=num_chains, model="a density")
    density = log_density_of_model(model, mesh_of(1), False)
    return start.starts_of_model(
        config, model, density, jax.random.split(jax.random.key(2), num_chains)
    )


@pytest.mark.check
@pytest.mark.parametrize("init_from", ["map", "pathfinder"])
def test_starts_are_several_deviations_away_whatever_the_scales(init_from):
    found = starts(narrow, 3, init_from)["x"]
    away = (found - CENTRE) / SCALES
    np.testing.assert_allclose(np.sqrt(np.mean(away**2, axis=0)), start.SPREAD, rtol=0.5)
    assert len(np.unique(away[:, 1])) == CHAINS


@pytest.mark.check
def test_chains_without_a_path_start_evenly_and_are_named(caplog):
    """The gradient is the same everywhere: no curvature, and no end."""
    found = starts(lambda x: jnp.sum(x) * 1e30, 2, "pathfinder", 2)["x"]
    assert np.abs(found).max() <= 2
    assert "from the starts of chains 0, 1, which" in caplog.text
