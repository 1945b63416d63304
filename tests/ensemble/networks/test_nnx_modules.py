"""NNX modules by a factory: as modules by hand and as Linen modules, through a whole run."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ensemble import InputError, networks

KEY = jax.random.key(0)
INPUTS = jax.random.normal(jax.random.key(7), (5, 6))


class Plain(nnx.Module):
    """Two layers in a list; a function of its inputs alone, though it keeps its rngs."""

    def __init__(self, num_outputs, *, rngs):
        self.layers = nnx.List([nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, num_outputs, rngs=rngs)])
        self.rngs = rngs
        self.off = nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.off(nnx.tanh(self.layers[0](x))))


class Noise(nnx.Module):
    """The noise of two dropouts of one rate, which were built from the same rngs or without."""

    def __init__(self, rngs=None):
        second = nnx.Dropout(0.5, deterministic=True, rngs=rngs)  # Until it is trained.
        self.dropouts = nnx.List([nnx.Dropout(0.5, rngs=rngs), second])

    def __call__(self, x):
        return jnp.concatenate([dropout(jnp.ones_like(x)) for dropout in self.dropouts])


class GivenNoise(Noise):
    """The same, with the rngs given to the call, as in NNX's tutorials."""

    def __init__(self, rngs):
        super().__init__()

    def __call__(self, x, rngs=None):
        return jnp.concatenate([one(jnp.ones_like(x), rngs=rngs) for one in self.dropouts])


def network_of(kind):
    return networks.from_nnx(lambda rngs: kind(3, rngs=rngs))


def test_a_member_is_the_module_that_its_key_gives():
    network = network_of(Plain)
    module = Plain(3, rngs=nnx.Rngs(KEY))
    variables = network.init(KEY, INPUTS[:1])
    outputs, state = network.apply(variables, INPUTS)
    np.testing.assert_array_equal(outputs, module(INPUTS))
    assert state == {}
    assert variables.keys() == {"params"}
    kernel = variables["params"]["layers"]["1"]["kernel"]
    np.testing.assert_array_equal(kernel, module.layers[1].kernel[...])
    raw, _ = network.apply(network.init(jax.random.key_data(KEY), INPUTS), INPUTS)
    np.testing.assert_array_equal(raw, outputs)


@pytest.mark.parametrize("kind", [Noise, GivenNoise])
def test_every_dropout_has_a_mask_of_its_own(kind):
    network = networks.from_nnx(kind)
    inputs = jnp.ones((20, 6))

    @jax.jit
    def masks(key):
        return jnp.split(network.apply(network.init(KEY, inputs), inputs, True, key)[0] > 0, 2)

    first, second = masks(jax.random.key(1))
    other, _ = masks(jax.random.key(2))
    for mask in (first, second, other):
        assert 0.3 < mask.mean() < 0.7
    assert (first != second).any()
    assert (first != other).any()
    np.testing.assert_array_equal(masks(jax.random.key(1))[0], first)
    outputs, _ = network.apply(network.init(KEY, inputs), inputs)
    np.testing.assert_array_equal(outputs, 1)


def test_it_equals_the_linen_module_that_has_its_weights():
    class Linen(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            x = flax.linen.tanh(flax.linen.Dense(8, name="0")(x))
            return flax.linen.Dense(3, name="1")(x)

    network = network_of(Plain)
    linen = networks.as_network(Linen(), "linen")
    params = network.init(KEY, INPUTS)["params"]

    def loss(apply, params):
        return jnp.sum(jax.nn.log_softmax(apply({"params": params}, INPUTS, True, KEY)[0])[:, 0])

    found = jax.value_and_grad(lambda params: loss(network.apply, params))(params)
    expected = jax.value_and_grad(lambda params: loss(linen.apply, params))(params["layers"])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found[1]["layers"], expected[1]
    )


def test_a_factory_that_always_returns_the_same_module_is_refused():
    module = Plain(3, rngs=nnx.Rngs(0))
    with pytest.raises(InputError, match="returns the same module twice"):
        networks.from_nnx(lambda rngs: module)
