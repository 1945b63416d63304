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

from collections.abc import Callable
from inspect import signature
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from ensemble.config.builtin import MODELS, NO_EMBEDDING
from ensemble.config.pieces import resolve
from ensemble.errors import InputError, in_one_line, in_own_code
from ensemble.network import Network
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.packed import Packing
from ensemble.pytrees import ByName, Function

FLOAT32 = "float32"
"""Value of `config.dtype` that leaves every network as it is."""
_FACTORIES = (
    "it is called as factory(num_outputs), and must return a Linen module, or an object with the "
    "functions init and apply, such as ensemble.networks.from_functions(init, apply) or "
    "from_nnx(lambda rngs: MyModule(num_outputs, rngs=rngs))"
)
_ON_DEMAND = {
    path.rpartition(":")[2]: path
    for path in (
        *MODELS.names.values(),
        "ensemble.networks.functions:from_functions",
        "ensemble.networks.nnx_modules:from_nnx",
        "ensemble.networks.packed:PackedConv",
        "ensemble.networks.packed:PackedDense",
    )
}
"""Names of this package whose modules are imported when somebody asks for them."""


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve(_ON_DEMAND[name])


def create(
    model: str | Function,
    num_outputs: int,
    settings: ByName | None = None,
    dtype: str = FLOAT32,
    quantiles: np.ndarray | None = None,
    packing: Packing | None = None,
) -> Network:
    """Builds a network.

    Args:
        model: Name or path of the network, or its factory.
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
    factory = MODELS.load(model) if isinstance(model, str) else model
    options = dict(settings or {})
    if takes_quantiles(options):
        if quantiles is None:
            raise InputError(
                f"{model=} embeds numbers, which only tables and feature vectors in memory have; "
                "use 'mlp' without an embedding, or 'cnn' for pictures"
            )
        options["input_quantiles"] = tuple(map(tuple, quantiles.tolist()))
    if dtype != FLOAT32:
        options["dtype"] = getattr(jnp, dtype)
    if packing is not None:
        options["packing"] = packing
    for argument, key in {"dtype": f"{dtype=}", "packing": "method='packed_ensemble'"}.items():
        if argument in options and argument not in signature(factory).parameters:
            raise InputError(
                f"config.{key} is for networks whose factory or Linen class takes `{argument}`, "
                f"and {model=} does not; let it give that to every layer, or choose another"
            )
    try:
        made = factory(num_outputs, **options)
    except InputError:
        raise
    except Exception as error:  # A factory is a program, and may raise anything.
        raise InputError(
            f"the factory of {model=} failed {in_own_code(error)}; {_FACTORIES}"
        ) from error
    return as_network(made, model)


def takes_quantiles(settings: ByName) -> bool:
    """Whether a network with these settings embeds numbers by their quantiles."""
    return bool(settings.get("embedding", NO_EMBEDDING) != NO_EMBEDDING)


def on_features(function: Callable[[Any], Any], head: str | Function) -> Function:
    """Makes a factory of networks that are heads on the features of a frozen backbone.

    Args:
        function: From raw inputs [B, ...] float32 to features [B, F], in JAX, as in prediction:
            without dropout, and an example's features do not depend on the other examples.
        head: Name of a network, or its factory; its inputs are the features [B, F].
    """
    from ensemble.networks.functions import FrozenBackbone  # Few networks have one.

    def factory(num_outputs: int, dtype=jnp.float32) -> Network:
        return FrozenBackbone(function, create(head, num_outputs, dtype=jnp.dtype(dtype).name))

    return factory


def as_network(made: Any, model: str | Function) -> Network:
    """Adapts what the factory of a model returns.

    Raises:
        InputError: It is neither a module nor a network.
    """
    if isinstance(made, nn.Module):
        return LinenNetwork(made)
    has_both = callable(getattr(made, "init", None)) and callable(getattr(made, "apply", None))
    if isinstance(made, type) or not has_both:
        raise InputError(
            f"the factory of {model=} returns {in_one_line(repr(made), 60)}; {_FACTORIES}"
        )
    network: Network = made
    return network
