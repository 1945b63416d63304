"""Two plain functions as a network: trees of parameters of any form, through a whole run."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble import networks
from ensemble.network import Traits
from ensemble.networks.facts import traits

KEY = jax.random.key(0)
INPUTS = jax.random.normal(jax.random.key(7), (5, 6))


def init_layers(rng_key, inputs):
    """Two dense layers as a list of pairs, with one without parameters between them."""
    key_first, key_second = jax.random.split(rng_key)
    first = jax.random.normal(key_first, (inputs.shape[1], 8)) / 2
    return [(first, jnp.zeros(8)), (), (jax.random.normal(key_second, (8, 3)) / 3, jnp.zeros(3))]


def apply_layers(params, inputs):
    (kernel, bias), (), (last_kernel, last_bias) = params
    return jnp.tanh(inputs @ kernel + bias) @ last_kernel + last_bias


class Layer(NamedTuple):
    """Parameters with names."""

    kernel: Any
    bias: Any


def make_layer(rng_key, inputs):
    return Layer(jax.random.normal(rng_key, (inputs.shape[1], 3)), 0.5)


def pair(num_outputs):
    return networks.from_functions(init_layers, apply_layers)


@pytest.mark.parametrize(
    ("init", "apply", "shapes"),
    [
        (init_layers, apply_layers, {"0": {"0": (6, 8), "1": (8,)}, "2": {"0": (8, 3), "1": (3,)}}),
        (make_layer, lambda p, x: x @ p.kernel + p.bias, {"kernel": (6, 3), "bias": ()}),
        (lambda key, x: jnp.ones((x.shape[1], 3)), lambda p, x: x @ p, {"array": (6, 3)}),
    ],
)
def test_any_tree_of_parameters_becomes_nested_dicts_and_comes_back(init, apply, shapes):
    network = networks.from_functions(init, apply)
    variables = network.init(KEY, INPUTS[:1])
    assert jax.tree.map(jnp.shape, variables) == {"params": shapes}
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(variables))
    read = jax.tree.map(np.asarray, variables)  # As from a checkpoint.
    for train in (False, True):
        outputs, state = network.apply(read, INPUTS, train, KEY)
        np.testing.assert_allclose(outputs, apply(init(KEY, INPUTS), INPUTS), rtol=1e-6)
        assert state == {}
    assert traits(network, (6,)) == Traits(has_state=False, is_random=False)
