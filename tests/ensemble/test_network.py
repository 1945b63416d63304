"""What is found out about a network by tracing it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from ensemble.errors import UserError
from ensemble.network import Traits, last_activation, mixing, prediction, traits
from ensemble.networks import as_network
from ensemble.networks.linen import LinenNetwork


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
        (Pair(), r"returns a tuple; it must return one array.*: write `return outputs`, without"),
        (Forgetful(), r"returns None; it must return one array.*: end the function with"),
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
    assert last_activation(prediction(LinenNetwork(_Ends(how)), (5,))) == expected


class _Function(nn.Module):
    """A function of inputs [N, 6]."""

    function: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x - x.mean(0), "reduce_sum"),
        (lambda x: nn.Dense(2)(x) / jnp.std(x), "reduce_sum"),
        (lambda x: x / x.max(0, keepdims=True), "reduce_max"),
        (lambda x: nn.softmax(x @ x.T) @ x, "reduce_max"),
        (lambda x: x - jnp.ones(len(x)) @ x, "dot_general"),
        (
            lambda x: (x.reshape(2, -1, 6) - x.reshape(2, -1, 6).mean(1, keepdims=True))[0],
            "reduce_sum",
        ),
        (lambda x: jnp.cumsum(x, 0), "cumsum"),
        (lambda x: jnp.sort(x, 0), "sort"),
        (lambda x: x[::-1], "rev"),
        (lambda x: x * jnp.argmax(x, 0), "argmax"),
        (lambda x: nn.LayerNorm()(x), ""),
        (lambda x: nn.GroupNorm(num_groups=3)(x), ""),
        (lambda x: nn.BatchNorm(use_running_average=True)(x), ""),
        (lambda x: nn.softmax(jnp.sort(x)[:, ::-1]).cumsum(1) @ jnp.ones((6, 3)), ""),
        (lambda x: nn.MultiHeadDotProductAttention(2)(x.reshape(-1, 3, 2)).reshape(-1, 6), ""),
        (lambda x: nn.RNN(nn.GRUCell(4))(x[..., None])[:, -1], ""),
        (lambda x: nn.Conv(4, (3,))(x[..., None]).mean(1), ""),
        (lambda x: jnp.concatenate([x, x[:, ::-1]]).reshape(2, -1, 6).mean(0), ""),
        (lambda x: jax.vmap(lambda one: one / one.sum())(x), ""),
        (lambda x: jax.lax.map(lambda one: one / one.sum(), x), ""),
    ],
)
def test_mixing(function, expected):
    assert mixing(prediction(LinenNetwork(_Function(function)), (6,))) == expected


@pytest.mark.parametrize("width", [1009, 2018, 1009 * 1013])
def test_no_width_is_taken_for_the_examples(width):
    network = LinenNetwork(_Function(lambda x: nn.Dense(3)(x.cumsum(1))))
    assert mixing(prediction(network, (width,))) == ""
