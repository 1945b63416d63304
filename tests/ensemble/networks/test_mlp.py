"""The multilayer perceptron and its keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble import networks
from ensemble.networks import layers

INPUTS = jax.random.normal(jax.random.key(1), (3, 5))

ACTIVATIONS = ("relu", "tanh", "silu", "gelu")


@pytest.mark.check
def test_without_settings_it_is_two_layers_of_256_rectified_units():
    network = networks.create("mlp", 4)
    params = network.init(jax.random.key(0), INPUTS[:1])["params"]
    kernels = {name: layer["kernel"].shape for name, layer in params.items()}
    assert kernels == {"Dense_0": (5, 256), "Dense_1": (256, 256), "Dense_2": (256, 4)}
    x = INPUTS
    for name in ("Dense_0", "Dense_1"):
        x = jnp.maximum(x @ params[name]["kernel"] + params[name]["bias"], 0)
    expected = x @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]
    outputs = network.apply({"params": params}, INPUTS)[0]
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_settings_say_the_layers_and_what_follows_each(activation):
    network = networks.create("mlp", 4, {"widths": (7,), "activation": activation})
    params = network.init(jax.random.key(0), INPUTS[:1])["params"]
    hidden = np.asarray(INPUTS @ params["Dense_0"]["kernel"], np.float64)
    functions = {
        "relu": np.maximum(hidden, 0),
        "tanh": np.tanh(hidden),
        "silu": hidden / (1 + np.exp(-hidden)),
        "gelu": hidden / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))),
    }
    outputs = network.apply({"params": params}, INPUTS)[0]
    np.testing.assert_allclose(
        outputs, functions[activation] @ params["Dense_1"]["kernel"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.check
def test_mapped_over_networks_it_has_examples_in_columns_and_the_same_values():
    network = networks.create("mlp", 4, {"widths": (7, 6), "activation": "silu"})
    keys = jax.random.split(jax.random.key(0), 3)

    def start(key):
        return network.init(key, INPUTS[:1])["params"]

    def make_program():  # JAX keeps what it has traced of the same function.
        def total(params):
            outputs = network.apply({"params": params}, INPUTS)[0]
            return jnp.sum(outputs**2), outputs

        return jax.vmap(jax.grad(total, has_aux=True))

    params = jax.vmap(start)(keys)
    in_rows = jax.make_jaxpr(make_program())(params)
    expected = make_program()(params)
    with layers.mapped_over_networks():
        jax.tree.map(np.testing.assert_array_equal, jax.vmap(start)(keys), params)
        assert str(jax.make_jaxpr(make_program())(params)) != str(in_rows)
        found = make_program()(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )
