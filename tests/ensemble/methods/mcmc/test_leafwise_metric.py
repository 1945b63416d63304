"""The metric of leaves against BlackJAX's own, which joins them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.metrics import default_metric

from ensemble.methods.mcmc.leafwise_metric import leafwise_metric


def tree_of(seed, num_rows=5):
    rng = np.random.default_rng(seed)
    shapes = {"rows": (num_rows, 3), "shared": (2, 2), "scalar": ()}
    return {name: jnp.asarray(rng.normal(size=shape), "f4") for name, shape in shapes.items()}


REFERENCE = default_metric(jnp.ones(5 * 3 + 4 + 1))


def test_the_kinetic_energy_is_that_of_the_joined_vector():
    momentum = tree_of(0)
    expected = REFERENCE.kinetic_energy(momentum)
    assert float(leafwise_metric().kinetic_energy(momentum)) == pytest.approx(float(expected))
    velocity = jax.grad(leafwise_metric().kinetic_energy)(momentum)
    jax.tree.map(np.testing.assert_allclose, velocity, momentum)


def test_trajectories_turn_where_those_of_the_joined_vector_do():
    decisions = []
    for seed in range(30):
        ends = [tree_of(3 * seed + i) for i in range(2)]
        total = jax.tree.map(
            lambda left, right, other: 0.55 * (left + right) + 0.4 * other,
            *ends,
            tree_of(3 * seed + 2),
        )
        expected = bool(REFERENCE.check_turning(*ends, total))
        assert bool(leafwise_metric().check_turning(*ends, total)) == expected
        decisions.append(expected)
    assert 0 < sum(decisions) < 30


def test_every_leaf_has_its_own_stream():
    position = tree_of(0)
    momentum = leafwise_metric().sample_momentum(jax.random.key(1), position)
    for k, name in enumerate(sorted(position)):
        key = jax.random.fold_in(jax.random.key(1), k)
        np.testing.assert_array_equal(momentum[name], jax.random.normal(key, position[name].shape))


def test_momenta_are_standard_normal():
    momentum = leafwise_metric().sample_momentum(jax.random.key(0), jnp.zeros((100, 100)))
    assert abs(float(momentum.mean())) < 4 / 100
    assert float(momentum.var()) == pytest.approx(1, abs=4 * np.sqrt(2) / 100)


def test_padding_has_no_momentum_and_changes_no_other():
    mask = {"rows": np.arange(8) < 5, "shared": np.ones((), bool), "scalar": np.ones((), bool)}
    padded = leafwise_metric(mask).sample_momentum(jax.random.key(1), tree_of(0, num_rows=8))
    whole = leafwise_metric().sample_momentum(jax.random.key(1), tree_of(0))
    assert (padded["rows"][5:] == 0).all()
    padded["rows"] = padded["rows"][:5]
    jax.tree.map(np.testing.assert_array_equal, padded, whole)


def test_the_scale_of_the_identity_is_one():
    element = tree_of(1)
    scaled = leafwise_metric().scale(tree_of(0), element, inv=True, trans=False)
    jax.tree.map(np.testing.assert_array_equal, scaled, element)
