"""Noise and batch statistics are told apart, in whichever library a network is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from ensemble import networks
from ensemble.network import differs_in_training, draws_noise
from ensemble.networks import as_network

SHAPE = (6,)
KEY = jax.random.key(3)


class Both(nn.Module):
    """Dropout and batch statistics, told by one switch, as a field or an argument."""

    as_field: bool = False
    rate: float = 0.5

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        if self.as_field:
            x = nn.Dropout(self.rate, deterministic=not train)(x)
        else:
            x = nn.Dropout(self.rate)(x, not train)
        return nn.Dense(3)(x)


class Attention(nn.Module):
    """Drops attention, and what comes out of it."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(4)(x[..., None])
        attend = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5)
        return nn.Dense(3)(attend(x, deterministic=not train).reshape(len(x), -1))


class OtherStream(nn.Module):
    """Draws from a stream of another name."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5, rng_collection="mine", deterministic=not train)(x)
        return nn.Dense(3)(x)


class OwnNoise(nn.Module):
    """Noise of no layer of Flax, beside one that has some."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        if train:
            x = x + jax.random.normal(self.make_rng("dropout"), x.shape)
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=not train))


class TwoHeads(nn.Module):
    """Adds up two heads in training."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5)(x, deterministic=not train)
        first, second = nn.Dense(3)(x), nn.Dense(3)(x)
        return first + second if train else first


class OfNNX(nnx.Module):
    """Dropout and batch statistics."""

    def __init__(self, rngs):
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(self.norm(self.first(x))))


class OfNNXWithHeads(OfNNX):
    """Doubles what comes out, in training."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.factor = 1.0

    def train(self, **attributes):
        super().train(**attributes)
        self.factor = 2.0

    def __call__(self, x):
        return self.factor * super().__call__(x)


def of_functions():
    def init(rng_key, inputs):
        return {"w": jax.random.normal(rng_key, (6, 3))}

    def apply(params, inputs, rng_key=None):
        if rng_key is not None:
            inputs = jnp.where(jax.random.bernoulli(rng_key, 0.5, inputs.shape), 2 * inputs, 0)
        return inputs @ params["w"]

    return networks.from_functions(init, apply)


NOISY = {
    "linen": Both(),
    "linen, as a field": Both(as_field=True),
    "attention": Attention(),
    "another stream": OtherStream(),
    "nnx": networks.from_nnx(OfNNX),
    "functions": of_functions(),
}


@pytest.mark.parametrize("name", NOISY)
def test_a_key_alone_draws_noise_and_moves_no_statistics(name):
    network = as_network(NOISY[name], "mine")
    inputs = jax.random.normal(jax.random.key(0), (5, *SHAPE))
    variables = network.init(jax.random.key(1), inputs)
    plain, state = network.apply(variables, inputs)
    noisy, after = network.apply(variables, inputs, False, KEY)
    again, _ = network.apply(variables, inputs, False, KEY)
    other, _ = network.apply(variables, inputs, False, jax.random.key(4))
    np.testing.assert_array_equal(noisy, again)
    assert not np.allclose(noisy, plain)
    assert not np.allclose(noisy, other)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert draws_noise(network, SHAPE)
    assert not differs_in_training(network, SHAPE)


@pytest.mark.parametrize("kind", [Both, Attention])
def test_the_mean_over_noise_is_by_running_statistics(kind):
    """With statistics of a batch it would be another."""
    network = as_network(kind(), "mine")
    inputs = 3 + 2 * jax.random.normal(jax.random.key(0), (5, *SHAPE))
    variables = network.init(jax.random.key(1), inputs)
    keys = jax.random.split(KEY, 20_000)
    found = jax.jit(jax.vmap(lambda key: network.apply(variables, inputs, False, key)[0]))(keys)
    error = np.asarray(found).std(axis=0) / np.sqrt(len(keys))
    plain = np.asarray(network.apply(variables, inputs)[0])
    if kind is Both:  # Linear behind the noise, of which the mean is the plain output then.
        assert (np.abs(found.mean(axis=0) - plain) < 5 * error).all()
    learned = np.asarray(network.apply(variables, inputs, True, KEY)[0])
    assert not np.allclose(plain, learned)


@pytest.mark.parametrize(
    ("network", "has_noise", "differs"),
    [
        (Both(rate=0.0), False, False),
        (OwnNoise(), True, True),
        (TwoHeads(), True, True),
        (networks.from_nnx(OfNNXWithHeads), True, True),
        (networks.create("mlp", 3), False, False),
        (networks.create("mlp", 3, {"dropout": 0.1}), True, False),
    ],
)
def test_what_a_switch_changes_beside_noise_and_statistics_is_seen(network, has_noise, differs):
    network = as_network(network, "mine")
    assert draws_noise(network, SHAPE) == has_noise
    assert differs_in_training(network, SHAPE) == differs


class OtherRate(nn.Module):
    """Drops more in training than its passes would."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5 if train else 0.0)(x, deterministic=not train)
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=not train))


class OneIsOff(nn.Module):
    """Has a layer that never drops, which would in passes."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5, deterministic=True)(x)
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=not train))


class OwnSwitch(OfNNX):
    """Has an attribute of the name that layers of Flax have."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.deterministic = False

    def __call__(self, x):
        return super().__call__(x) * (1 if self.deterministic else 2)


@pytest.mark.parametrize(
    "module", [OtherRate(), OneIsOff(), networks.from_nnx(OwnSwitch)], ids=["rate", "off", "nnx"]
)
def test_noise_that_passes_would_not_have_as_training_has_is_seen(module):
    assert differs_in_training(as_network(module, "mine"), SHAPE)


@pytest.mark.check
@pytest.mark.parametrize("name", ["cnn", "resnet20"])
def test_networks_of_images_drop_units_where_they_are_asked_to(name):
    network = networks.create(name, 3, {"dropout": 0.2})
    assert draws_noise(network, (8, 8, 1))
    assert not differs_in_training(network, (8, 8, 1))
    assert not draws_noise(networks.create(name, 3), (8, 8, 1))


def test_a_head_on_features_tells_them_apart_too():
    head = networks.on_features(lambda inputs: inputs, "mlp")(3)
    assert not differs_in_training(head, SHAPE)
