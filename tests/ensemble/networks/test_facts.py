"""Facts about networks that are found by calling them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from ensemble import networks
from ensemble.networks import facts
from ensemble.networks.linen import LinenNetwork, LogisticRegression


def calling(function):
    """A Linen module whose call is a function of inputs and the switch."""

    class Module(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool = False):
            return function(x, train)

    return LinenNetwork(Module())


def of_inputs(function):
    return calling(lambda x, train: function(x))


def dropped(x, train, rate=0.5):
    return nn.Dropout(rate, deterministic=not train)(nn.Dense(3)(x))


def normalised(x, train):
    return dropped(nn.BatchNorm(use_running_average=not train)(x), train)


def attending(x, train):
    attend = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5)
    x = attend(nn.Dense(4)(x[..., None]), deterministic=not train)
    return nn.Dense(3)(x.reshape(len(x), -1))


def convolved(x, train):
    x = nn.Conv(2, (3,))(x.reshape(len(x), 8, 1))
    return nn.Dense(3)(x.reshape(len(x), -1))


def of_tokens(x, train):
    return nn.Dense(3)(nn.Dense(513)(x.reshape(len(x), 8, 1)).mean(axis=1))


def of_other_stream(x, train):
    return nn.Dropout(0.5, rng_collection="mine", deterministic=not train)(nn.Dense(3)(x))


def of_two_heads(x, train):
    x, other = dropped(x, train), nn.Dense(3)(x)
    return x + other if train else x


class OfNNX(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(self.norm(x)))


def of_functions():
    def init(rng_key, inputs):
        return {"kernel": jax.random.normal(rng_key, (6, 3))}

    def apply(params, inputs, rng_key=None):
        if rng_key is not None:
            inputs = jnp.where(jax.random.bernoulli(rng_key, 0.5, inputs.shape), 2 * inputs, 0)
        return inputs @ params["kernel"]

    return networks.from_functions(init, apply)


NOISY = {
    "linen": calling(normalised),
    "attention": calling(attending),
    "another stream": calling(of_other_stream),
    "nnx": networks.from_nnx(OfNNX),
    "functions": of_functions(),
}


@pytest.mark.check
@pytest.mark.parametrize("name", NOISY)
def test_a_key_alone_draws_noise_and_moves_no_statistics(name):
    network = NOISY[name]
    key = jax.random.key(3)
    inputs = jax.random.normal(jax.random.key(0), (5, 6))
    variables = network.init(jax.random.key(1), inputs)
    plain, state = network.apply(variables, inputs)
    noisy, after = network.apply(variables, inputs, False, key)
    again, _ = network.apply(variables, inputs, False, key)
    other, _ = network.apply(variables, inputs, False, jax.random.key(4))
    np.testing.assert_array_equal(noisy, again)
    assert not np.allclose(noisy, plain)
    assert not np.allclose(noisy, other)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert facts.traits(network, (6,)).is_random
    if not state:
        assert facts.has_same_noise(network, (6,))


def test_noise_that_only_training_has_is_seen():
    assert not facts.has_same_noise(calling(of_two_heads), (6,))


@pytest.mark.parametrize(
    ("network", "shape", "expected"),
    [
        (of_inputs(lambda x: nn.Dense(3)(x)), (4,), (False, False, False, False)),
        (calling(lambda x, train: dropped(x, train, 0.0)), (4,), (False, False, False, False)),
        (calling(dropped), (4,), (False, True, False, False)),
        (calling(normalised), (4,), (True, True, False, False)),
        (networks.create("cnn", 3), (8, 8, 1), (False, False, True, True)),
        (networks.create("mlp", 3), (8, 8, 1), (False, False, False, False)),
        # Of 1-D convolutions of columns, and of activations that are large for every member.
        (calling(convolved), (8,), (False, False, True, True)),
        (calling(of_tokens), (8,), (False, False, False, True)),
        (networks.create("mlp", 3, {"dropout": 0.1}), (4,), (False, True, False, False)),
    ],
)
def test_state_noise_and_convolutions(network, shape, expected):
    found = facts.traits(network, shape)
    assert found == expected
    assert found.examples_are_independent == (not any(expected[:2]))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (nn.softmax, "softmax"),
        (lambda x: jnp.clip(nn.softmax(x), 1e-7, 1 - 1e-7).astype(jnp.float16), "softmax"),
        (nn.sigmoid, "sigmoid"),
        (nn.relu, ""),
        (nn.log_softmax, ""),
        (nn.tanh, ""),
        (lambda x: nn.relu(nn.LayerNorm()(x)), ""),
        (lambda x: nn.softmax(x) @ jnp.ones((3, 3)), ""),
    ],
)
def test_the_last_activation(end, expected):
    call = facts.Called(of_inputs(lambda x: end(nn.Dense(3)(x))), (5,))
    assert facts.last_activation(call) == expected


DENSE = [
    (LinenNetwork(LogisticRegression(3)), (4, 5, 1)),
    (LinenNetwork(LogisticRegression(3, dtype=jnp.bfloat16)), (6,)),
    (of_inputs(lambda x: nn.Dense(3, name="head")(x.reshape(len(x), -1))), (2, 3)),
]
MORE = {
    "relu": lambda x: nn.relu(nn.Dense(6)(x)),
    "softmax": lambda x: nn.softmax(nn.Dense(6)(x)),
    "shortcut": lambda x: nn.Dense(6)(x) + x,
    "twice": lambda x: 2 * nn.Dense(6)(x),
    "two": lambda x: nn.Dense(6)(x) + nn.Dense(6)(x),
}
"""What ends in no dense layer."""
INSIDE = {
    "tanh": lambda x: nn.Dense(6)(jnp.tanh(x)),
    "reversed": lambda x: nn.Dense(6)(x[:, ::-1]),
    "without bias": lambda x: nn.Dense(6, use_bias=False)(x),
    "deep": lambda x: nn.Dense(6, name="last")(nn.relu(nn.Dense(6)(x))),
}
"""What ends in one that is not all."""


@pytest.mark.parametrize(("network", "shape"), DENSE)
def test_a_dense_layer_is_recognised(network, shape):
    assert facts.output_layer(network, shape).keys() == {"kernel", "bias"}


@pytest.mark.parametrize("name", [*MORE, *INSIDE])
def test_what_is_more_than_a_dense_layer(name):
    network = of_inputs({**MORE, **INSIDE}[name])
    assert (facts.output_layer(network, (6,)) is None) == (name in MORE)


@pytest.mark.parametrize(
    ("network", "shape", "paths"),
    [
        (of_inputs(INSIDE["deep"]), (6,), {"kernel": "last/kernel", "bias": "last/bias"}),
        (of_inputs(INSIDE["without bias"]), (6,), {"kernel": "Dense_0/kernel"}),
        (
            networks.create("cnn", 3),
            (8, 8, 1),
            {"kernel": "Dense_1/kernel", "bias": "Dense_1/bias"},
        ),
        (NOISY["nnx"], (6,), {"kernel": "last/kernel", "bias": "last/bias"}),
        (NOISY["functions"], (6,), {"kernel": "kernel"}),
    ],
)
def test_the_output_layer(network, shape, paths):
    found = facts.output_layer(network, shape)
    named = {name: "/".join(key.key for key in path) for name, path in found.items()}
    assert named == paths


def test_facts_are_found_while_a_program_is_traced():
    network = networks.create("mlp", 3)

    @jax.jit
    def traced(x):
        assert facts.output_layer(network, (4,)) is not None
        return x

    traced(jnp.ones(3))
