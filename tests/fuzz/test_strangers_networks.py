"""Networks of strangers, right and wrong ones: trained, or refused where they are wrong."""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from strangers import MARKS, check, learn, numbers, vectors

import ensemble

pytestmark = MARKS
HERE = r"test_strangers_networks.py:\d+"


def compact(call):
    """A Linen module with a field `num_outputs` and this call."""
    fields = {"__annotations__": {"num_outputs": int}, "__module__": __name__}
    return types.new_class(
        "Strange", (nn.Module,), {}, lambda body: body.update(fields, __call__=nn.compact(call))
    )


def plain(self, x):
    return nn.Dense(self.num_outputs)(nn.relu(nn.Dense(32)(x)))


def dropout(self, x, is_off):
    return plain(self, nn.Dropout(0.5, deterministic=is_off)(x))


def of_batch(self, x, is_frozen):
    x = nn.BatchNorm(use_running_average=is_frozen, momentum=0.8)(nn.Dense(32)(x))
    return nn.Dense(self.num_outputs)(nn.relu(x))


def with_train(self, x, train):
    return dropout(self, x, not train)


def with_training(self, x, training: bool = False):
    return of_batch(self, x, not training)


class WithSetup(nn.Module):
    """Layers of `setup`, more fields, and another name for the classes."""

    num_classes: int
    width: int = 16

    def setup(self):
        self.layers = [nn.Dense(self.width), nn.Dense(self.num_classes)]

    def __call__(self, x):
        return self.layers[1](nn.tanh(self.layers[0](x)))


class Fixed(nn.Module):
    """No field at all."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(16)(x)))


class OfNNX(nnx.Module):
    """The module of a tutorial."""

    def __init__(self, num_outputs: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(5, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(32, num_outputs, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def two_functions(apply):
    def make(num_outputs):
        return ensemble.networks.from_functions(
            lambda key, x: jax.random.normal(key, (x.shape[1], num_outputs)), apply
        )

    return make


def backbone(inputs):
    return np.tanh(np.asarray(inputs) @ np.random.default_rng(0).normal(size=(5, 16)))


# fmt: off
NETWORKS = {
    "plain": (compact(plain), ""),
    "train= without a default": (compact(with_train), ""),
    "training= and batch statistics": (compact(with_training), ""),
    "a function": (lambda n: WithSetup(num_classes=n, width=8), ""),
    "no field, in a function": (lambda num_outputs: Fixed(), ""),
    "no field": (Fixed, "num_outputs|field|number of outputs"),
    "the wrong number of outputs": (lambda n: WithSetup(n + 2), "outputs|shape"),
    "an instance": (Fixed(), "instance|module that|class|factory|Register"),
    "dropout without a switch": (compact(lambda self, x: dropout(self, x, False)), "take `train`"),
    "statistics without a switch": (compact(lambda self, x: of_batch(self, x, False)), "train"),
    "statistics that never move": (compact(lambda self, x: of_batch(self, x, True)), "use_running"),
    "a normalisation over the batch": (
        compact(lambda self, x: plain(self, (x - x.mean(0)) / (x.std(0) + 1e-3))), "batch|examples"
    ),
    "softmax at the end": (compact(lambda self, x: nn.softmax(plain(self, x))), "softmax|logits"),
    "log softmax at the end": (compact(lambda self, x: nn.log_softmax(plain(self, x))), ""),
    "a typo in its call": (compact(lambda self, x: nn.rellu(plain(self, x))), f"{HERE}.*rellu"),
    "a matrix that does not fit": (compact(lambda self, x: plain(self, x @ np.ones((7, 3)))), HERE),
    "a tuple": (compact(lambda self, x: (plain(self, x), x)), "one array|tuple"),
    "nothing returned": (compact(lambda self, x: None), "one array|None"),
    "logarithms of negative numbers": (compact(lambda self, x: plain(self, jnp.log(x))), "finite"),
    "NumPy within": (compact(lambda self, x: plain(self, np.tanh(x.__array__()))), "Tracer"),
    "a branch on values": (
        compact(lambda self, x: plain(self, x if x.sum() > 0 else -x)), f"{HERE}.*Tracer"
    ),
    "float16 outputs": (compact(lambda self, x: plain(self, x).astype(jnp.float16)), ""),
    "NNX": (lambda n: ensemble.networks.from_nnx(lambda rngs: OfNNX(n, rngs)), ""),
    "NNX without from_nnx": (OfNNX, "from_nnx"),
    "NNX, an instance": (lambda n: OfNNX(n, nnx.Rngs(0)), "from_nnx"),
    "two functions": (two_functions(lambda params, x: x @ params), ""),
    "two functions, swapped": (two_functions(lambda x, params: x @ params), f"{HERE}|shape"),
    "one function": (lambda params, x: x @ params, "from_functions|factory|argument|takes"),
    "a string": ("resnet", "resnet|name|factory|class"),
    "a frozen backbone of NumPy": (ensemble.networks.on_features(backbone, "mlp"), ""),
}
# fmt: on


@pytest.fixture
def trained(monkeypatch):
    def train(factory, config=None, make=vectors):
        def attempt():
            ensemble.networks.register("strange", factory)
            (inputs, known), (new, truth) = make(0), make(1)
            data = {"inputs": inputs, "labels" if make is vectors else "targets": known}
            return learn(data, new, truth, {"model": "strange"} | (config or {}))

        return attempt

    return train


@pytest.mark.parametrize("case", NETWORKS)
def test_networks(case, trained):
    factory, says = NETWORKS[case]
    check(trained(factory), says)


def test_networks_of_other_runs(trained):
    check(trained(compact(with_train), {"method": "hmc"}), "dropout|noise|random")
    of_numbers = {"likelihood": "gaussian"}
    check(trained(lambda n: WithSetup(1), of_numbers, numbers), "outputs|shape")
    check(trained(WithSetup, of_numbers, numbers))
    check(lambda: learn(vectors(0), *vectors(1), {"model": WithSetup}), "model")
