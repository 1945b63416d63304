"""Cases: networks of strangers, right and wrong ones, in Python."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from strangers import Score, case
from strangers_data import learn, learn_numbers, numbers, vectors

import ensemble


def of_network(
    name: str,
    factory: Any,
    says: str = "",
    config: dict[str, Any] | None = None,
    train: Callable[..., Score] = learn,
    make: Callable[[int], Any] = vectors,
) -> None:
    """Adds a case that registers a network and trains it."""

    @case(f"network, {name}", says=says)
    def _(folder) -> Score:
        word = f"strange{''.join(one for one in name if one.isalnum())}"
        ensemble.networks.register(word, factory)
        (inputs, known), (new, truth) = make(0), make(1)
        return train(data_of(inputs, known), new, truth, {"model": word} | (config or {}))


def data_of(inputs: Any, known: Any) -> dict[str, Any]:
    """The data of a case, of classes or of numbers."""
    return {"inputs": inputs, "labels" if known.dtype.kind == "i" else "targets": known}


def compact(call: Callable[..., Any], base: Any = nn.Module, **fields: Any) -> Any:
    """A Linen module with a field `num_outputs` and this call."""
    body = {"__call__": nn.compact(call), "__annotations__": {"num_outputs": int}, **fields}
    return type("Strange", (base,), body | {"__module__": __name__})


def plain(self, x):
    """Two dense layers, the way most networks begin."""
    return nn.Dense(self.num_outputs)(nn.relu(nn.Dense(32)(x)))


def with_train(self, x, train):
    """A switch without a default."""
    return plain(self, nn.Dropout(0.1, deterministic=not train)(x))


def with_training(self, x, training: bool = False):
    """Another library's word."""
    x = nn.BatchNorm(use_running_average=not training, momentum=0.8)(nn.Dense(32)(x))
    return nn.Dense(self.num_outputs)(nn.relu(x))


def with_deterministic(self, x, deterministic: bool = True):
    """Flax's word."""
    return plain(self, nn.Dropout(0.1, deterministic=deterministic)(x))


def with_own_switch(self, x, learning: bool = False):
    """A word that nobody knows."""
    return plain(self, nn.Dropout(0.5, deterministic=not learning)(x))


def batch_norm_without_switch(self, x):
    """Statistics that are of the batch for ever."""
    return plain(self, nn.BatchNorm(use_running_average=False)(x))


def batch_norm_frozen(self, x):
    """Statistics that never move."""
    return plain(self, nn.BatchNorm(use_running_average=True)(x))


def wrong_width(self, x):
    """A matrix that does not fit."""
    return plain(self, x @ jnp.ones((7, 3)))


def with_nan(self, x):
    """The logarithm of negative numbers."""
    return plain(self, jnp.log(x))


def with_numpy(self, x):
    """NumPy, which cannot be traced."""
    return plain(self, np.tanh(np.asarray(x)))


def with_branch(self, x):
    """A branch on values."""
    return plain(self, x if x.sum() > 0 else -x)


def over_batch(self, x):
    """A normalisation over the batch, written by hand."""
    return plain(self, (x - x.mean(0)) / (x.std(0) + 1e-3))


def dropout_without_switch(self, x):
    """Noise that never stops."""
    return plain(self, nn.Dropout(0.5, deterministic=False)(x))


class WithSetup(nn.Module):
    """Layers of `setup`, more fields, and another name for the classes."""

    num_classes: int
    width: int = 16

    def setup(self):
        """Makes the layers."""
        self.layers = [nn.Dense(self.width), nn.Dense(self.num_classes)]

    def __call__(self, x):
        """As `plain`."""
        return self.layers[1](nn.tanh(self.layers[0](x)))


class Fixed(nn.Module):
    """No field at all."""

    @nn.compact
    def __call__(self, x):
        """As `plain`."""
        return nn.Dense(3)(nn.relu(nn.Dense(16)(x)))


class OfNNX(nnx.Module):
    """The module of a tutorial."""

    def __init__(self, num_outputs: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(5, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(32, num_outputs, rngs=rngs)

    def __call__(self, x):
        """As `plain`."""
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def function(params: Any, inputs: Any) -> Any:
    """An `apply` without its `init`."""
    return inputs @ params


def pair(num_outputs: int) -> Any:
    """The two functions of the page."""
    return ensemble.networks.from_functions(
        lambda key, inputs: jax.random.normal(key, (inputs.shape[1], num_outputs)),
        function,
    )


def swapped(num_outputs: int) -> Any:
    """The arguments of `apply` in the other order."""
    return ensemble.networks.from_functions(
        lambda key, inputs: jax.random.normal(key, (inputs.shape[1], num_outputs)),
        lambda inputs, params: inputs @ params,
    )


def backbone(inputs: Any) -> Any:
    """Features by NumPy."""
    return np.tanh(np.asarray(inputs) @ np.random.default_rng(0).normal(size=(5, 16)))


@case("network, a name that is unknown", says="resnet50.*(mlp|known)")
def _(folder) -> Score:
    return learn(vectors(0), *vectors(1), {"model": "resnet50"})


of_network("plain", compact(plain))
of_network("train= without a default", compact(with_train))
of_network("training= and batch statistics", compact(with_training))
of_network("deterministic=", compact(with_deterministic))
of_network("fields of setup", WithSetup)
of_network("a function of the number of outputs", lambda n: WithSetup(num_classes=n, width=8))
of_network("no field, in a function", lambda num_outputs: Fixed())
of_network("no field", Fixed, says="num_outputs|field|number of outputs")
of_network("the wrong number of outputs", lambda n: WithSetup(n + 2), says="outputs|shape")
of_network("an instance", Fixed(), says="instance|module that|class|factory|Register")
of_network("a switch of its own", compact(with_own_switch), says="dropout|train")
of_network("dropout without a switch", compact(dropout_without_switch), says="take `train`")
of_network(
    "batch statistics without a switch", compact(batch_norm_without_switch), says="train|statistics"
)
of_network("batch statistics that never move", compact(batch_norm_frozen), says="statistics|train")
of_network("a normalisation over the batch", compact(over_batch), says="batch|other examples")
of_network(
    "softmax at the end", compact(lambda self, x: nn.softmax(plain(self, x))), says="softmax|logits"
)
of_network(
    "sigmoid at the end", compact(lambda self, x: nn.sigmoid(plain(self, x))), says="sigmoid|logits"
)
of_network("log softmax at the end", compact(lambda self, x: nn.log_softmax(plain(self, x))))
of_network(
    "a typo in its call",
    compact(lambda self, x: nn.rellu(plain(self, x))),  # type: ignore[attr-defined]
    says=r"strangers_modules.py:\d+.*rellu",
)
of_network("a matrix that does not fit", compact(wrong_width), says=r"strangers_modules.py:\d+")
of_network("a tuple", compact(lambda self, x: (plain(self, x), x)), says="one array|tuple")
of_network("a dict", compact(lambda self, x: {"logits": plain(self, x)}), says="one array|dict")
of_network("nothing returned", compact(lambda self, x: None), says="one array|None")
of_network(
    "an axis too many", compact(lambda self, x: plain(self, x)[:, None]), says="shape|outputs"
)
of_network(
    "a mean over the batch", compact(lambda self, x: plain(self, x).mean(0)), says="shape|outp"
)
of_network("logarithms of negative numbers", compact(with_nan), says="nan|finite")
of_network("NumPy within", compact(with_numpy), says=r"strangers_modules.py:\d+.*Tracer")
of_network("a branch on values", compact(with_branch), says=r"strangers_modules.py:\d+.*Tracer")
of_network("float16 outputs", compact(lambda self, x: plain(self, x).astype(jnp.float16)))
of_network(
    "whole numbers as outputs",
    compact(lambda self, x: jnp.argmax(plain(self, x), -1)),
    says="outputs|dtype|int|shape",
)
of_network("NNX", lambda n: ensemble.networks.from_nnx(lambda rngs: OfNNX(n, rngs)))
of_network("NNX without from_nnx", OfNNX, says="from_nnx")
of_network("NNX, an instance", lambda n: OfNNX(n, nnx.Rngs(0)), says="from_nnx")
of_network("two functions", pair)
of_network("two functions, arguments swapped", swapped, says=r"strangers_modules.py:\d+|shape")
of_network("one function", function, says="from_functions|factory|argument|takes")
of_network("a string", "resnet", says="resnet|name|factory|class")
of_network("a frozen backbone of NumPy", ensemble.networks.on_features(backbone, "mlp"))
of_network(
    "dropout, and HMC",
    compact(with_train),
    says="dropout|noise|random",
    config={"method": "hmc"},
)
of_network(
    "one output for a Gaussian",
    lambda n: WithSetup(1),
    says="outputs|shape",
    train=learn_numbers,
    make=numbers,
)
of_network("numbers", WithSetup, train=learn_numbers, make=numbers)


@case("network, the name of a built-in one")
def _(folder) -> Score:
    ensemble.networks.register("lenet5", compact(plain))
    return learn(vectors(0), *vectors(1), {"model": "lenet5"})


@case("network, a module as config.model", says="model")
def _(folder) -> Score:
    return learn(vectors(0), *vectors(1), {"model": WithSetup})
