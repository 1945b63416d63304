"""The metric of leaves, and its mass, against BlackJAX's own, which joins them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.mcmc.metrics import default_metric
from jax.flatten_util import ravel_pytree

from ensemble.methods import leafwise_metric as leafwise
from ensemble.methods.leafwise_metric import leafwise_metric


def tree_of(seed, num_rows=5):
    rng = np.random.default_rng(seed)
    shapes = {"rows": (num_rows, 3), "shared": (2, 2), "scalar": ()}
    return {name: jnp.asarray(rng.normal(size=shape), "f4") for name, shape in shapes.items()}


@pytest.fixture(params=["identity", "diagonal"])
def metrics(request):
    """The metric of leaves, and BlackJAX's with the same mass."""
    if request.param == "identity":
        return leafwise_metric(), default_metric(jnp.ones(5 * 3 + 4 + 1))
    inverse_mass = jax.tree.map(jnp.exp, tree_of(99))
    return leafwise_metric(None, inverse_mass), default_metric(ravel_pytree(inverse_mass)[0])


def test_the_kinetic_energy_is_that_of_the_joined_vector(metrics):
    metric, reference = metrics
    momentum = tree_of(0)
    expected = reference.kinetic_energy(momentum)
    assert float(metric.kinetic_energy(momentum)) == pytest.approx(float(expected))
    velocities = (jax.grad(one.kinetic_energy)(momentum) for one in (metric, reference))
    jax.tree.map(lambda *both: np.testing.assert_allclose(*both, rtol=1e-6), *velocities)


def test_trajectories_turn_where_those_of_the_joined_vector_do(metrics):
    metric, reference = metrics
    decisions = []
    for seed in range(30):
        ends = [tree_of(3 * seed + i) for i in range(2)]
        total = jax.tree.map(
            lambda left, right, other: 0.55 * (left + right) + 0.4 * other,
            *ends,
            tree_of(3 * seed + 2),
        )
        expected = bool(reference.check_turning(*ends, total))
        assert bool(metric.check_turning(*ends, total)) == expected
        joined = (ravel_pytree(one)[0] for one in (*ends, total))  # By the criterion of nuts.
        assert bool(metric.check_turning(*joined)) == expected
        decisions.append(expected)
    assert 0 < sum(decisions) < 30


def test_every_leaf_has_its_own_stream():
    position = tree_of(0)
    momentum = leafwise_metric().sample_momentum(jax.random.key(1), position)
    for k, name in enumerate(sorted(position)):
        key = jax.random.fold_in(jax.random.key(1), k)
        np.testing.assert_array_equal(momentum[name], jax.random.normal(key, position[name].shape))


def test_padding_has_no_momentum_and_changes_no_other():
    mask = {"rows": np.arange(8) < 5, "shared": np.ones((), bool), "scalar": np.ones((), bool)}
    padded = leafwise_metric(mask).sample_momentum(jax.random.key(1), tree_of(0, num_rows=8))
    whole = leafwise_metric().sample_momentum(jax.random.key(1), tree_of(0))
    assert (padded["rows"][5:] == 0).all()
    padded["rows"] = padded["rows"][:5]
    jax.tree.map(np.testing.assert_array_equal, padded, whole)


def test_momenta_vary_as_the_mass_says():
    inverse_mass = jnp.array([[0.25], [4.0]]) * jnp.ones((2, 10_000))
    metric = leafwise_metric(None, inverse_mass)
    momentum = metric.sample_momentum(jax.random.key(0), jnp.zeros((2, 10_000)))
    np.testing.assert_allclose(momentum.std(axis=1), [2, 0.5], rtol=4 / np.sqrt(2 * 10_000))


def test_the_mass_is_that_of_the_joined_vector():
    ours = leafwise.start(tree_of(0))
    start, add, finish = mass_matrix_adaptation()
    theirs = start(5 * 3 + 4 + 1)
    for seed in range(4):
        ours = leafwise.add(ours, tree_of(seed))
        theirs = add(theirs, tree_of(seed))
    ours = leafwise.finish(ours)
    theirs = finish(theirs)
    joined = ravel_pytree(ours.inverse_mass_matrix)[0]
    np.testing.assert_allclose(joined, theirs.inverse_mass_matrix, rtol=1e-5)
    assert not ravel_pytree(ours.wc_state)[0].any()
