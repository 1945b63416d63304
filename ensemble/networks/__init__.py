"""Networks by name: each maps inputs [N, ...] to outputs [N, num_outputs].

A network of your own joins in two lines, after which `model=mine` in a config finds it:

    import ensemble
    ensemble.networks.register("mine", MyModule)

where `MyModule` is a Linen module whose one field is the number of outputs, or any function of
that number that returns a module. A module that behaves differently in training (dropout, batch
statistics) declares a keyword `train: bool` in its `__call__`. A classifier's outputs are logits.

An NNX module holds its weights already, so a factory makes one for each member:

    ensemble.networks.register(
        "mine",
        lambda num_outputs: ensemble.networks.from_nnx(
            lambda rngs: MyModule(num_outputs, rngs=rngs)
        ),
    )

Two plain functions, `init(rng_key, inputs)` of parameters and `apply(params, inputs)` of outputs,
become a network by `from_functions(init, apply)`.

Whatever has the two functions of `ensemble.network.Network` may be returned in a module's place.

A function from raw inputs [N, ...] to features [N, F], such as all but the last layers of a network
that is trained already, becomes a frozen backbone; only heads on its features are learned:

    ensemble.networks.register("mine", ensemble.networks.on_features(function, "mlp"))
"""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from ensemble import registry
from ensemble.errors import UserError, in_own_code
from ensemble.network import Network
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.packed import Packing
from ensemble.networks.precision import FLOAT32, of_dtype, parameters

if TYPE_CHECKING:
    from ensemble.networks.cnn import CNN as CNN
    from ensemble.networks.functions import from_functions as from_functions
    from ensemble.networks.lenet5 import LeNet5 as LeNet5
    from ensemble.networks.logistic_regression import LogisticRegression as LogisticRegression
    from ensemble.networks.mlp import MLP as MLP
    from ensemble.networks.nnx_modules import from_nnx as from_nnx
    from ensemble.networks.packed import PackedConv as PackedConv
    from ensemble.networks.packed import PackedDense as PackedDense
    from ensemble.networks.resnet import ResNet20 as ResNet20
    from ensemble.networks.resnet50 import ResNet50 as ResNet50
    from ensemble.networks.vit import ViT as ViT

Factory = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])

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
    return registry.load(_ON_DEMAND[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})


@overload
def register(name: str, factory: F) -> F:
    """Registers the factory, and returns it."""


@overload
def register(name: str, factory: None = None) -> Callable[[F], F]:
    """Returns a decorator that registers a factory."""


def register(name, factory=None):
    """Makes a network available to `create` under `name`.

    It is the short form of `ensemble.register("network", name, NetworkEntry(factory))`.

    Args:
        name: what a config's `model` says. A name that was registered before is taken over; one of
            a built-in network cannot be.
        factory: called as `factory(num_outputs)`, returns a Linen module or a `Network`. Left out,
            `register(name)` is a decorator for the factory.

    Returns:
        The factory, unchanged.

    Raises:
        UserError: the name is a built-in network's.
    """
    if factory is None:
        return functools.partial(register, name)
    registry.NETWORKS.register(name, registry.NetworkEntry(factory))
    return factory


def names() -> list[str]:
    """The names of networks that are built in, and registered or asked for here, sorted."""
    return sorted(registry.NETWORKS)


def create(
    name: str,
    num_outputs: int,
    settings: Mapping[str, Any] = _NO_SETTINGS,
    dtype: str = FLOAT32,
    quantiles: np.ndarray | None = None,
    packing: Packing | None = None,
) -> Network:
    """Builds the network registered as `name`.

    Args:
        name: one of `names()`.
        num_outputs: K, how many numbers the network puts out for an example.
        settings: keywords for the factory: `ensemble.config.model_settings`.
        dtype: that it computes in, a value of `config.dtype`.
        quantiles: of its inputs, `Source.quantiles`, for a factory that takes them.
        packing: what an estimator of a packed ensemble has of the network; None: all of it.

    Raises:
        UserError: no network of that name is registered, or its factory returns something else or
            does not take the settings, the dtype or the packing.
    """
    if name not in registry.NETWORKS:
        known = sorted(registry.NETWORKS.names(installed=True))
        raise UserError(
            f"model={name!r} is not a known model; use one of {', '.join(known)}, "
            "or register your own with ensemble.networks.register(name, factory); programs "
            "other than train.py run the file that does so where it is given as --config=FILE"
        )
    factory = _factory(name)
    _check_factory(factory, name)
    if settings:
        try:
            inspect.signature(factory).bind_partial(num_outputs, **settings)
        except TypeError:
            keys = " and ".join(f"config.{name}.{key}={settings[key]!r}" for key in settings)
            raise UserError(
                f"{keys} cannot be used: the factory of model={name!r} takes no such argument, "
                "which its keys of the configuration name; give it one of that name"
            ) from None
    if takes_quantiles(name):
        if quantiles is None:
            raise UserError(
                f"model={name!r} asks for {QUANTILES}, which only tables and feature vectors in "
                "memory have, and no head of a backbone; use 'mlp', or 'cnn' for pictures"
            )
        settings = {**settings, QUANTILES: tuple(map(tuple, quantiles.tolist()))}
    if packing is not None:
        if PACKING not in parameters(factory):
            raise UserError(
                f"config.method='packed' is for networks whose factories take `{PACKING}`, and "
                f"model={name!r} is none; use 'mlp', 'embedded_mlp', 'cnn', 'lenet5' or "
                "'resnet20', or give the factory this argument, an ensemble.networks.Packing"
            )
        settings = {**settings, PACKING: packing}
    try:
        made = of_dtype(factory, name, dtype)(num_outputs, **settings)
    except UserError:
        raise
    except Exception as error:  # A factory is a program, and may raise anything.
        raise UserError(
            f"the factory of model={name!r} failed {in_own_code(error)}; it is called with the "
            f"number of outputs, as factory({num_outputs}), and returns a Linen module, or of NNX "
            "what ensemble.networks.from_nnx returns"
        ) from error
    return as_network(made, name)


def takes_quantiles(name: str) -> bool:
    """Whether the factory of a network has an argument `input_quantiles`.

    It is then given those of each feature as the network sees it, over the training examples, at 65
    levels evenly spaced from 0 to 1, as tuples [F][65].
    """
    return name in registry.NETWORKS and QUANTILES in parameters(_factory(name))


def _factory(name: str) -> Factory:
    factory: Factory = registry.load_code(registry.NETWORKS, name, registry.NETWORKS[name].factory)
    return factory


def _check_factory(factory: Any, name: str) -> None:
    """Refuses what makes no network for a number of outputs, and says what to register.

    Raises:
        UserError: it is an NNX module, or an object, or a Linen class whose first field is not the
            number of outputs.
    """
    refuse_nnx(factory, name)
    kind = factory if isinstance(factory, type) else type(factory)
    call, register = kind.__name__, f"ensemble.networks.register({name!r}, "
    if not issubclass(kind, nn.Module):
        if callable(factory):
            return
        reason = "cannot be called"
        remedy = f"write {register}lambda num_outputs: ...) to return one"
    elif _takes_outputs_first(kind):
        if factory is kind:
            return
        reason = "cannot be given the number of outputs"
        remedy = f"write {register}{call}), without an object"
    elif named := list(filter(_OUTPUTS.fullmatch, _fields(kind))):
        reason = f"does not have {named[0]} as its first field"
        remedy = f"write {register}lambda num_outputs: {call}({named[0]}=num_outputs))"
    else:
        reason = "has no field for the number of outputs"
        remedy = (
            "give it `num_outputs: int` as its first field and a last layer of self.num_outputs "
            f"units, and write {register}{call})"
        )
    what = f"the Linen class {call}" if factory is kind else f"an object of the class {call}"
    raise UserError(f"model={name!r} is registered as {what}, which {reason}; {remedy}")


def _takes_outputs_first(module: type[nn.Module]) -> bool:
    """Whether the first field of a Linen class is the number of outputs.

    It has one of two names, or any, such as `features`, if it is required and no other has these.
    """
    fields = _fields(module)
    first = next(iter(fields.values()), None)
    if first is None or _OUTPUTS.fullmatch(first.name):
        return first is not None
    is_required = first.default is first.default_factory is dataclasses.MISSING
    return is_required and not any(map(_OUTPUTS.fullmatch, fields))


def _fields(module: type[nn.Module]) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a Linen class, by name, but for those that every one has."""
    fields = {one.name: one for one in dataclasses.fields(module) if one.init}
    return {name: one for name, one in fields.items() if name not in ("parent", "name")}


def on_features(function: Callable[[Any], Any], head: str | Factory) -> Factory:
    """Makes a factory of networks that are heads on the features of a frozen backbone.

    The features of a data set are computed once and kept on disk. Predictions take raw inputs.

    Args:
        function: from raw inputs [B, ...] float32 to features [B, F], as of prediction: without
            dropout, and an example's features do not depend on those beside it. A function of JAX
            is compiled. Any other is called on the host with a NumPy array.
        head: the name of a network, or its factory; its inputs are the features [B, F], each
            standardised over the training examples.

    Raises:
        UserError: the function or the head is none.
    """
    if not callable(function):
        raise UserError(
            f"ensemble.networks.on_features was given a {type(function).__name__} as the backbone; "
            "it takes a function from inputs [B, ...] to features [B, F]"
        )
    if not (isinstance(head, str) or callable(head)):
        raise UserError(
            f"ensemble.networks.on_features was given a {type(head).__name__} as the head; it "
            "takes the name of a network, such as 'mlp', or its factory"
        )
    from ensemble.networks.backbone import FunctionBackbone, HeadNetwork  # Few networks have one.

    backbone = FunctionBackbone(function)

    def factory(num_outputs: int, dtype: Any = None) -> Network:
        precision = FLOAT32 if dtype is None else jnp.dtype(dtype).name
        if isinstance(head, str):
            network = create(head, num_outputs, dtype=precision)
        else:
            refuse_nnx(head, "mine")
            network = as_network(of_dtype(head, "mine", precision)(num_outputs), "mine")
        if getattr(network, "backbone", None) is not None:
            raise UserError(
                f"the head {head!r} has a backbone of its own; give a network without one, and one "
                "function that does what both backbones do"
            )
        return HeadNetwork(network, backbone)

    return factory


def as_network(made: Any, name: str) -> Network:
    """Adapts what a factory returns.

    Raises:
        UserError: it is neither a module nor a network.
    """
    refuse_nnx(made, name)
    if isinstance(made, type):
        raise UserError(
            f"model={name!r} makes the class {made.__name__}, which is no network; its factory "
            f"must return an object, such as {made.__name__}(num_outputs)"
        )
    if isinstance(made, nn.Module):
        return LinenNetwork(made)
    if callable(getattr(made, "init", None)) and callable(getattr(made, "apply", None)):
        return made
    raise UserError(
        f"model={name!r} makes a {type(made).__name__}, which is no network; its factory must "
        "return a Linen module, or what ensemble.networks.from_nnx or "
        "ensemble.networks.from_functions returns, or an object with the functions init and apply"
    )


def refuse_nnx(value: Any, name: str) -> None:
    """Refuses NNX modules and classes of them, for they are no factories.

    Args:
        value: anything.
        name: of the network that it was registered as.

    Raises:
        UserError: it is one, with what to write.
    """
    nnx = sys.modules.get("flax.nnx")  # Where it was not imported, there are none.
    kind = value if isinstance(value, type) else type(value)
    if nnx is None or not issubclass(kind, nnx.Module):
        return
    reason = "already holds the weights of one member"
    if isinstance(value, type):
        reason = "needs an nnx.Rngs for each member"
    raise UserError(
        f"model={name!r} is the NNX {'class' if kind is value else 'module'} {kind.__name__}, "
        f"which {reason}; write ensemble.networks.register({name!r}, lambda num_outputs: "
        f"ensemble.networks.from_nnx(lambda rngs: {kind.__name__}(num_outputs, rngs=rngs)))"
    )
