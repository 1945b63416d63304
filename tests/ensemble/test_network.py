"""What is found out about a network by tracing it, and by computing one batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from ensemble import UserError
from ensemble.network import Traits, is_dense_layer, last_activation, mixes_examples, traits
from ensemble.networks import as_network
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.logistic_regression import LogisticRegression


class Plain:
    """A network as a pair of functions."""

    def init(self, rng_key, inputs):
        return {"params": {"w": jax.random.normal(rng_key, (inputs.shape[-1], 3))}}

    def apply(self, variables, inputs, train=False, rng_key=None):
        return inputs @ variables["params"]["w"], {}


class Wasteful(Plain):
    """Makes keys that it does not use."""

    def apply(self, variables, inputs, train=False, rng_key=None):
        if train:
            jax.random.split(jax.random.fold_in(rng_key, 3))
        return super().apply(variables, inputs)


class Noisy(nn.Module):
    """Dropout of some rate, and batch statistics if wanted."""

    rate: float = 0.0
    has_statistics: bool = False

    @nn.compact
    def __call__(self, x, train: bool = False):
        if self.has_statistics:
            x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dropout(self.rate, deterministic=not train)(nn.Dense(3)(x))


class Convolving(Plain):
    """Convolves within a program of its own, as `jnp.convolve` does."""

    def apply(self, variables, inputs, train=False, rng_key=None):
        kernel = variables["params"]["w"][:, 0]
        return jax.vmap(lambda row: jnp.convolve(row, kernel))(inputs)[:, :3], {}


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (Plain(), Traits(has_state=False, is_random=False)),
        (Wasteful(), Traits(has_state=False, is_random=False)),
        (Noisy(), Traits(has_state=False, is_random=False)),
        (Noisy(rate=0.5), Traits(has_state=False, is_random=True)),
        (Noisy(has_statistics=True), Traits(has_state=True, is_random=False)),
        (Noisy(rate=0.5, has_statistics=True), Traits(has_state=True, is_random=True)),
        (Convolving(), Traits(has_state=False, is_random=False, has_convolutions=True)),
    ],
)
def test_state_noise_and_convolutions_are_found(network, expected):
    found = traits(as_network(network, "mine"), (4,))
    assert found == expected
    assert found.examples_are_independent == (not expected.has_state and not expected.is_random)


def test_a_linen_network_is_random_in_training_alone():
    network = as_network(Noisy(rate=0.5, has_statistics=True), "mine")
    inputs = jnp.arange(8.0).reshape(2, 4)
    variables = network.init(jax.random.key(0), inputs)
    calm, kept = network.apply(variables, inputs)
    noisy, moved = network.apply(variables, inputs, True, jax.random.key(1))
    assert (calm != noisy).any()
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a == b).all(), kept, {"batch_stats": variables["batch_stats"]})
    )
    means = [one["batch_stats"]["BatchNorm_0"]["mean"] for one in (kept, moved)]
    assert (means[0] != means[1]).any()


class Pair(nn.Module):
    """Returns more than its outputs."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x), x


class Forgetful(nn.Module):
    """Returns nothing."""

    @nn.compact
    def __call__(self, x):
        nn.Dense(3)(x)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Pair(), r"a tuple.*`return outputs`"),
        (Forgetful(), r"returns None.*end the function"),
    ],
)
def test_outputs_that_are_no_array_are_refused(module, line, train):
    inputs = jnp.ones((2, 4))
    network = as_network(module, "mine")
    variables = network.init(jax.random.key(0), inputs)
    with pytest.raises(UserError, match=line):
        network.apply(variables, inputs, train, jax.random.key(1))


class _Ends(nn.Module):
    how: str

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(3)(x)
        ends = {
            "softmax": nn.softmax,
            "by hand": lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True),
            "reshaped": lambda x: nn.softmax(x).astype(jnp.float16).reshape(-1, 3),
            "jitted": jax.jit(nn.softmax),
            "clipped": lambda x: jnp.clip(nn.softmax(x), 1e-7, 1 - 1e-7),
            "relu": nn.relu,
            "sigmoid": nn.sigmoid,
            "log_softmax": nn.log_softmax,
            "tanh": nn.tanh,
            "scaled": lambda x: x / 3,
            "attention": lambda x: nn.softmax(x) @ jnp.ones((3, 3)),
        }
        return ends[self.how](x)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("softmax", "softmax"),
        ("by hand", "softmax"),
        ("reshaped", "softmax"),
        ("jitted", "softmax"),
        ("clipped", "softmax"),
        ("relu", ""),
        ("sigmoid", "sigmoid"),
        ("log_softmax", ""),
        ("tanh", ""),
        ("scaled", ""),
        ("attention", ""),
    ],
)
def test_last_activation(how, expected):
    assert last_activation(LinenNetwork(_Ends(how)), (5,)) == expected


class _Function(nn.Module):
    """A function of inputs [N, 6]."""

    function: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        return self.function(x)


class _Sower(nn.Module):
    """Keeps a mean over the batch that nothing needs."""

    @nn.compact
    def __call__(self, x):
        self.sow("intermediates", "mean", x.mean())
        return nn.Dense(2)(x)


def attention(x):
    return nn.MultiHeadDotProductAttention(2)(x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x - x.mean(0), True),
        (lambda x: nn.Dense(2)(x) / jnp.std(x), True),
        (lambda x: nn.softmax(x @ x.T) @ x, True),
        (lambda x: x - x[0], True),
        (lambda x: jnp.roll(x, 1, 0), True),
        (lambda x: x.reshape(2, -1, 6).mean(0).repeat(2, 0), True),
        (lambda x: nn.Dense(2)(nn.relu(nn.Conv(16, (3,))(x))), True),  # It has no axis of channels.
        (lambda x: nn.RNN(nn.SimpleCell(4))(x), True),
        (attention, True),
        (lambda x: nn.LayerNorm()(x), False),
        (lambda x: nn.GroupNorm(num_groups=3)(x), False),
        (lambda x: nn.BatchNorm(use_running_average=True)(x), False),
        (lambda x: nn.Dense(3)(nn.tanh(nn.Dense(5000)(x))), False),
        (lambda x: attention(x.reshape(-1, 3, 2)).reshape(-1, 6), False),
        (lambda x: nn.RNN(nn.GRUCell(4))(x[..., None])[:, -1], False),
        (lambda x: nn.Conv(4, (3,))(x[..., None]).mean(1), False),
        (lambda x: jnp.log(x), False),  # Not finite.
        (lambda x: (x > 0).astype(jnp.int8), False),
    ],
)
def test_mixing_of_examples(function, expected):
    assert mixes_examples(LinenNetwork(_Function(function)), (6,)) == expected


def test_without_a_cpu_the_default_device_tells(monkeypatch):
    def no_cpu(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    assert mixes_examples(LinenNetwork(_Function(lambda x: x - x.mean(0))), (6,))


def test_what_nothing_needs_mixes_nothing():
    assert not mixes_examples(LinenNetwork(_Sower()), (6,))


def test_a_large_network_is_not_computed():
    assert not mixes_examples(LinenNetwork(_Function(lambda x: nn.Dense(1 << 24)(x - x[0]))), (6,))


def calling(function):
    """A Linen module with one call."""

    class Module(nn.Module):
        @nn.compact
        def __call__(self, x):
            return function(x)

    return LinenNetwork(Module())


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (LinenNetwork(LogisticRegression(3)), (6,)),
        (LinenNetwork(LogisticRegression(3)), (4, 5, 1)),
        (LinenNetwork(LogisticRegression(3, dtype=jnp.bfloat16)), (6,)),
        (calling(lambda x: nn.Dense(3, name="head")(x.reshape(len(x), -1))), (2, 3)),
    ],
)
def test_a_dense_layer_is_recognised(network, shape):
    assert is_dense_layer(network, shape)


@pytest.mark.parametrize(
    "network",
    [
        Plain(),
        calling(lambda x: nn.relu(nn.Dense(6)(x))),
        calling(lambda x: nn.softmax(nn.Dense(6)(x))),
        calling(lambda x: nn.Dense(6)(jnp.tanh(x))),
        calling(lambda x: nn.Dense(6)(x) + x),
        calling(lambda x: 2 * nn.Dense(6)(x)),
        calling(lambda x: nn.Dense(6)(x[:, ::-1])),
        calling(lambda x: nn.Dense(6)(x.T.reshape(2, 6))),
        calling(lambda x: nn.Dense(6, use_bias=False)(x)),
        calling(lambda x: nn.Dense(6)(nn.Dense(6)(x))),
        calling(lambda x: nn.Dense(6)(x).T.reshape(2, 6)),
    ],
)
def test_what_is_more_than_a_dense_layer_is_none(network):
    assert not is_dense_layer(network, (6,))
