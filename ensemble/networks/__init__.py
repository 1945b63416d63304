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

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from ensemble.config.builtin import NO_EMBEDDING
from ensemble.config.pieces import MODELS, resolve
from ensemble.errors import InputError, in_own_code
from ensemble.network import Network
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.packed import Packing
from ensemble.networks.precision import FLOAT32, of_dtype, parameters

Factory = Callable[..., Any]

_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
_OUTPUTS = re.compile("num_(outputs|classes)")
"""What the field of a Linen class for the number of outputs is called."""
QUANTILES = "input_quantiles"
"""The argument of a factory that is given quantiles of its inputs."""
PACKING = "packing"
"""The argument of a factory that is given the `Packing` of an estimator."""
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


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})


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
        name: name or path of the network.
        num_outputs: K, how many numbers the network puts out for an example.
        settings: keywords for the factory: `ensemble.config.settings`.
        dtype: that it computes in, a value of `config.dtype`.
        quantiles: of its inputs, `Source.quantiles`, for a factory that takes them.
        packing: what an estimator of a packed ensemble has of the network; None: all of it.

    Raises:
        InputError: the network is unknown, or its factory returns something else or
            does not take the settings, the dtype or the packing.
    """
    factory = _factory(name)
    _check_factory(factory, name)
    if quantiles is not None and QUANTILES in parameters(factory):
        settings = {**settings, QUANTILES: tuple(map(tuple, quantiles.tolist()))}
    elif takes_quantiles(name, settings):
        raise InputError(
            f"model={name!r} asks for {QUANTILES}, which only tables and feature vectors in "
            "memory have; use 'mlp' without an embedding, or 'cnn' for pictures"
        )
    if packing is not None:
        if PACKING not in parameters(factory):
            raise InputError(
                "config.method='packed_ensemble' is for networks whose factories take "
                f"`{PACKING}`, and "
                f"model={name!r} is none; use 'mlp', 'cnn', 'lenet5' or 'resnet20', or give the "
                "factory this argument, an ensemble.networks.Packing"
            )
        settings = {**settings, PACKING: packing}
    try:
        made = of_dtype(factory, name, dtype)(num_outputs, **settings)
    except InputError:
        raise
    except Exception as error:  # A factory is a program, and may raise anything.
        raise InputError(
            f"the factory of model={name!r} failed {in_own_code(error)}; it is called with the "
            f"number of outputs, as factory({num_outputs}), and returns a Linen module, or of NNX "
            "what ensemble.networks.from_nnx returns"
        ) from error
    return as_network(made, name)


def takes_quantiles(name: str, settings: Mapping[str, Any] = _NO_SETTINGS) -> bool:
    """Whether a network needs quantiles: an argument `input_quantiles`, or an embedding.

    It is then given those of each feature as the network sees it, over the training examples, at 65
    levels evenly spaced from 0 to 1, as tuples [F][65].
    """
    if QUANTILES not in parameters(_factory(name)):
        return False
    is_needed = parameters(_factory(name))[QUANTILES].default is inspect.Parameter.empty
    return is_needed or settings.get("embedding", NO_EMBEDDING) != NO_EMBEDDING


def _factory(name: str) -> Factory:
    factory: Factory = MODELS.load(name)
    return factory


def _check_factory(factory: Any, name: str) -> None:
    """Refuses what makes no network for a number of outputs, and says what to give.

    Raises:
        InputError: it is an NNX module, or an object that cannot be called, or a Linen class whose
            first field is not the number of outputs.
    """
    refuse_nnx(factory, name)
    kind = factory if isinstance(factory, type) else type(factory)
    is_linen = issubclass(kind, nn.Module)
    if callable(factory) and not is_linen:
        return
    if is_linen and factory is kind and _takes_outputs_first(kind):
        return
    what = f"the Linen class {kind.__name__}" if factory is kind else f"a {kind.__name__}"
    raise InputError(
        f"model={name!r} is {what}; it must be a function of the number of outputs, or a Linen "
        f"class whose first field is that number: lambda num_outputs: {kind.__name__}(...)"
    )


def _takes_outputs_first(module: type[nn.Module]) -> bool:
    """Whether the first field of a Linen class is the number of outputs.

    It has one of two names, or any, such as `features`, if it is required and no other has these.
    """
    fields = [one for one in dataclasses.fields(module) if one.init]
    fields = [one for one in fields if one.name not in ("parent", "name")]
    named = [bool(_OUTPUTS.fullmatch(one.name)) for one in fields]
    if any(named):
        return named[0]
    missing = dataclasses.MISSING
    return bool(fields) and fields[0].default is fields[0].default_factory is missing


def on_features(function: Callable[[Any], Any], head: str | Factory) -> Factory:
    """Makes a factory of networks that are heads on the features of a frozen backbone.

    Args:
        function: From raw inputs [B, ...] float32 to features [B, F], in JAX, as in prediction:
            without dropout, and an example's features do not depend on the other examples.
        head: Name of a network, or its factory; its inputs are the features [B, F].

    Raises:
        InputError: the function or the head is none.
    """
    if not callable(function) or not (isinstance(head, str) or callable(head)):
        raise InputError(
            f"ensemble.networks.on_features was given {type(function).__name__} and "
            f"{type(head).__name__}; it takes a function from inputs [B, ...] to features [B, F], "
            "and the name of a network, such as 'mlp', or its factory"
        )
    from ensemble.networks.frozen import FrozenBackbone  # Few networks have one.

    def factory(num_outputs: int, dtype: Any = None) -> Network:
        precision = FLOAT32 if dtype is None else jnp.dtype(dtype).name
        if isinstance(head, str):
            return FrozenBackbone(function, create(head, num_outputs, dtype=precision))
        refuse_nnx(head, "mine")
        made = of_dtype(head, "mine", precision)(num_outputs)
        return FrozenBackbone(function, as_network(made, "mine"))

    return factory


def as_network(made: Any, name: str) -> Network:
    """Adapts what a factory returns.

    Raises:
        InputError: it is neither a module nor a network.
    """
    refuse_nnx(made, name)
    if isinstance(made, nn.Module):
        return LinenNetwork(made)
    if not isinstance(made, type) and all(
        callable(getattr(made, part, None)) for part in ("init", "apply")
    ):
        return made
    what = f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"
    raise InputError(
        f"model={name!r} makes {what}, which is no network; its factory must return a Linen "
        "module, or what ensemble.networks.from_nnx or ensemble.networks.from_functions returns, "
        "or an object with the functions init and apply"
    )


def refuse_nnx(value: Any, name: str) -> None:
    """Refuses NNX modules and classes of them, for they are no factories.

    Args:
        value: anything.
        name: of the network, or its path.

    Raises:
        InputError: it is one, with what to write.
    """
    nnx = sys.modules.get("flax.nnx")  # Where it was not imported, there are none.
    kind = value if isinstance(value, type) else type(value)
    if nnx is None or not issubclass(kind, nnx.Module):
        return
    reason = "already holds the weights of one member"
    if isinstance(value, type):
        reason = "needs an nnx.Rngs for each member"
    raise InputError(
        f"model={name!r} is the NNX {'class' if kind is value else 'module'} {kind.__name__}, "
        f"which {reason}; give lambda num_outputs: ensemble.networks.from_nnx("
        f"lambda rngs: {kind.__name__}(num_outputs, rngs=rngs))"
    )
