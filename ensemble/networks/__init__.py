"""Networks by name: each maps inputs [N, ...] to outputs [N, num_outputs].

Your own is given as the value of `config.model`: a Linen module whose one field is the number of
outputs, or any function of that number that returns a module, or its path, `mine.py:MyModule`:

    config = {"model": MyModule}

A module that behaves differently in training (dropout, batch statistics) declares a keyword
`train: bool` in its `__call__`. A classifier's outputs are logits.

An NNX module holds its weights already, so a factory makes one for each member:

    def mine(num_outputs):
        return ensemble.networks.from_nnx(lambda rngs: MyModule(num_outputs, rngs=rngs))

Two plain functions, `init(rng_key, inputs)` of parameters and `apply(params, inputs)` of outputs,
become a network by `from_functions(init, apply)`.

Whatever has the two functions of `ensemble.network.Network` may be returned in a module's place.

A function of JAX from raw inputs [N, ...] to features [N, F], such as all but the last layers of a
network that is trained already, becomes a frozen backbone; only heads on its features are learned:

    mine = ensemble.networks.on_features(function, "mlp")
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from ensemble.config.builtin import NO_EMBEDDING
from ensemble.config.pieces import MODELS, resolve
from ensemble.errors import InputError, in_one_line, in_own_code
from ensemble.network import Network
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.packed import Packing

Factory = Callable[..., Any]

FLOAT32 = "float32"
"""Value of `config.dtype` that leaves every network as it is."""
_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
_FACTORIES = (
    "it is called as factory(num_outputs), and must return a Linen module, or an object with the "
    "functions init and apply, such as ensemble.networks.from_functions(init, apply) or "
    "from_nnx(lambda rngs: MyModule(num_outputs, rngs=rngs))"
)
_ON_DEMAND = {
    "CNN": "ensemble.networks.cnn:CNN",
    "LeNet5": "ensemble.networks.lenet5:LeNet5",
    "LogisticRegression": "ensemble.networks.logistic_regression:LogisticRegression",
    "MLP": "ensemble.networks.mlp:MLP",
    "PackedConv": "ensemble.networks.packed:PackedConv",
    "PackedDense": "ensemble.networks.packed:PackedDense",
    "ResNet20": "ensemble.networks.resnet:ResNet20",
    "ResNet50": "ensemble.networks.resnet50:ResNet50",
    "ViT": "ensemble.networks.vit:ViT",
    "from_functions": "ensemble.networks.functions:from_functions",
    "from_nnx": "ensemble.networks.nnx_modules:from_nnx",
}
"""Names of this package whose modules are imported when somebody asks for them."""


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve(_ON_DEMAND[name])


def create(
    name: str,
    num_outputs: int,
    settings: Mapping[str, Any] = _NO_SETTINGS,
    dtype: str = FLOAT32,
    quantiles: np.ndarray | None = None,
    packing: Packing | None = None,
) -> Network:
    """Builds a network.

    Args:
        name: Name or path of the network.
        num_outputs: K, numbers that the network puts out for an example.
        settings: Keywords for the factory: `ensemble.config.settings`.
        dtype: Type that it computes in, a value of `config.dtype`; parameters, outputs and state
            stay float32.
        quantiles: Quantiles of its inputs, `Source.quantiles`, for an embedding.
        packing: Part of the network that an estimator of a packed ensemble has; None: all of it.

    Raises:
        InputError: The network is unknown, or its factory fails, returns something else, or does
            not take the settings, the dtype or the packing.
    """
    factory = MODELS.load(name)
    known = _parameters(factory)
    options = dict(settings)
    if takes_quantiles(settings):
        if quantiles is None:
            raise InputError(
                f"model={name!r} embeds numbers, which only tables and feature vectors in memory "
                "have; use 'mlp' without an embedding, or 'cnn' for pictures"
            )
        options["input_quantiles"] = tuple(map(tuple, quantiles.tolist()))
    if dtype != FLOAT32:
        options["dtype"] = getattr(jnp, dtype)
    if packing is not None:
        options["packing"] = packing
    for key, argument in {
        f"dtype={dtype!r}": "dtype",
        "method='packed_ensemble'": "packing",
    }.items():
        if argument in options and argument not in known:
            raise InputError(
                f"config.{key} is for networks whose factory or Linen class takes `{argument}`, "
                f"and model={name!r} does not; let it give that to every layer, or choose another"
            )
    try:
        made = factory(num_outputs, **options)
    except InputError:
        raise
    except Exception as error:  # A factory is a program, and may raise anything.
        raise InputError(
            f"the factory of model={name!r} failed {in_own_code(error)}; {_FACTORIES}"
        ) from error
    return as_network(made, name)


def takes_quantiles(settings: Mapping[str, Any]) -> bool:
    """Whether a network with these settings embeds numbers by their quantiles."""
    return bool(settings.get("embedding", NO_EMBEDDING) != NO_EMBEDDING)


def _parameters(factory: Factory) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # Some callables of C have no signature.
        return {}


def on_features(function: Callable[[Any], Any], head: str | Factory) -> Factory:
    """Makes a factory of networks that are heads on the features of a frozen backbone.

    Args:
        function: From raw inputs [B, ...] float32 to features [B, F], in JAX, as in prediction:
            without dropout, and an example's features do not depend on the other examples.
        head: Name of a network, or its factory; its inputs are the features [B, F].
    """
    from ensemble.networks.frozen import FrozenBackbone  # Few networks have one.

    def factory(num_outputs: int, dtype: Any = None) -> Network:
        if isinstance(head, str):
            precision = FLOAT32 if dtype is None else jnp.dtype(dtype).name
            return FrozenBackbone(function, create(head, num_outputs, dtype=precision))
        made = head(num_outputs) if dtype is None else head(num_outputs, dtype=dtype)
        return FrozenBackbone(function, as_network(made, "mine"))

    return factory


def as_network(made: Any, name: str) -> Network:
    """Adapts what a factory returns.

    Raises:
        InputError: It is neither a module nor a network.
    """
    if isinstance(made, nn.Module):
        return LinenNetwork(made)
    has_both = callable(getattr(made, "init", None)) and callable(getattr(made, "apply", None))
    if isinstance(made, type) or not has_both:
        raise InputError(
            f"the factory of model={name!r} returns {in_one_line(repr(made), 60)}; {_FACTORIES}"
        )
    network: Network = made
    return network
