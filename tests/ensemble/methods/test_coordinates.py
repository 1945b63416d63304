"""Whitening coordinates: there and back, against the Hessian itself, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from run_parts import classification

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.methods.start import from_params, kronecker, to_params
from ensemble.priors import parse_prior
from ensemble.tasks.linear_likelihood import join_bias, split_bias

NUM_CLASSES = 3
NUM_FEATURES = 4


def make_task(prior="normal(0.7)", model="logistic_regression"):
    rng = np.random.default_rng(0)
    labels = rng.integers(NUM_CLASSES, size=120)
    inputs = rng.normal(size=(120, NUM_FEATURES)) @ rng.normal(size=(NUM_FEATURES, NUM_FEATURES))
    data = {"train_inputs": inputs, "train_labels": labels, "class_names": list("abc")}
    network = networks.create(model, NUM_CLASSES)
    return classification(dataset_from_arrays(data, hold_out=False), network, parse_prior(prior))


def random_params(seed, scale=1.0, name="Dense_0"):
    rng = np.random.default_rng(seed)
    matrix = scale * rng.normal(size=(NUM_FEATURES + 1, NUM_CLASSES))
    return split_bias(jnp.asarray(matrix, jnp.float32), {name: None})


def zeros():
    return jax.tree.map(jnp.zeros_like, random_params(0))


def whitened_hessian(task, coordinates, temperature=1.0):
    """Of the negative log density in z, at z = 0."""
    inputs, labels = task.dataset.splits["train"]
    flat, unravel = ravel_pytree(zeros())

    def energy(flat):
        params = to_params(coordinates, unravel(flat))
        log_probs = task.predict({"params": params}, inputs)["log_probs"]
        likelihood = jnp.take_along_axis(log_probs, jnp.asarray(labels)[:, None], 1).sum()
        return -likelihood / temperature - task.log_prior(params)

    return np.asarray(jax.jit(jax.hessian(energy))(flat))


@pytest.mark.check
@pytest.mark.parametrize(
    ("prior", "temperature"),
    [("normal(0.7)", 1.0), ("*bias=normal(3), *kernel=normal(1.4/sqrt(fan_in))", 0.25)],
)
def test_the_hessian_is_the_identity_where_the_form_is_exact(prior, temperature):
    """Where all parameters are zero, all classes are equally likely for every example."""
    task = make_task(prior)
    coordinates = kronecker(task, task.dataset.splits["train"], zeros(), temperature)
    hessian = whitened_hessian(task, coordinates, temperature)
    np.testing.assert_allclose(hessian, np.eye(len(hessian)), atol=2e-4)
    plain = whitened_hessian(task, None, temperature)
    assert np.linalg.cond(plain) > 10


def test_the_hessian_is_near_the_identity_elsewhere():
    task = make_task()
    coordinates = kronecker(task, task.dataset.splits["train"], random_params(3, 0.4))
    values = np.linalg.eigvalsh(whitened_hessian(task, coordinates))
    assert 0.3 < values.min() < values.max() < 2
    plain = np.linalg.eigvalsh(whitened_hessian(task, None))
    assert values.max() / values.min() < 0.2 * plain.max() / plain.min()


@pytest.mark.check
def test_stretching_lifts_the_least_curvature():
    task = make_task("normal(3)")
    train = task.dataset.splits["train"]
    location = random_params(3, 1.5)
    values = {
        number: np.linalg.eigvalsh(
            whitened_hessian(task, kronecker(task, train, location, num_stretched=number))
        )
        for number in (0, 64)
    }
    assert values[64].min() > 1.3 * values[0].min()
    assert values[64].max() < 1.2 * values[0].max()
    coordinates = kronecker(task, train, location)
    assert len(coordinates["stretch"]) == 1  # A tenth of 15.
    direction = np.asarray(coordinates["directions"][0]).ravel()
    assert np.linalg.norm(direction) == pytest.approx(1, abs=1e-4)


def test_a_laplace_prior_counts_by_its_variance():
    laplace = make_task("laplace(0.5)")
    normal = make_task(f"normal({0.5 * 2**0.5})")
    ours, theirs = (
        kronecker(task, task.dataset.splits["train"], zeros()) for task in (laplace, normal)
    )
    np.testing.assert_allclose(ours["scale"], theirs["scale"], rtol=1e-5)


@pytest.mark.parametrize("name", ["Dense_0", "head"])
def test_there_and_back(name):
    """Whatever a network calls its layer."""
    task = make_task()
    location = random_params(5, name=name)
    coordinates = kronecker(task, task.dataset.splits["train"], location)
    params = random_params(7, name=name)
    to = functools.partial(to_params, coordinates)
    z = from_params(coordinates, params)
    assert jax.tree.structure(z) == jax.tree.structure(params)
    for back, leaf in zip(jax.tree.leaves(jax.jit(to)(z)), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(back, leaf, atol=1e-5)
    np.testing.assert_allclose(join_bias(to(zeros())), join_bias(location), atol=1e-6)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.zeros_like(leaf)]), z)
    mapped = jax.vmap(to)(many)
    np.testing.assert_allclose(mapped[name]["kernel"][1], location[name]["kernel"])
