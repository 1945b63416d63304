"""Networks that compute in half precision, with parameters, outputs and state in float32.

A dtype is given to what makes a network: to its factory, or to the field `dtype` of the Linen
module that the factory makes. What then computes is looked up in the traced network, for a module
may take a dtype and give it to none of its layers.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ensemble.errors import UserError
from ensemble.network import Network, equations, path_name
from ensemble.notes import note

FLOAT32 = "float32"
"""What leaves every module as it is."""

Factory = Callable[..., Any]
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")


def of_dtype(factory: Factory, name: str, dtype: str) -> Factory:
    """A factory of the same networks that compute in a dtype.

    Args:
        factory: of modules or networks, called with the number of outputs and settings.
        name: of the network, for messages.
        dtype: a value of `config.dtype`.

    Returns:
        The factory, which raises a `UserError` where what it makes takes no dtype.
    """
    if dtype == FLOAT32:
        return factory
    half = getattr(jnp, dtype)
    if "dtype" in parameters(factory):
        return functools.partial(factory, dtype=half)

    def cloned(*args: Any, **settings: Any) -> Any:
        made = factory(*args, **settings)
        if isinstance(made, nn.Module) and hasattr(made, "dtype"):
            return made.clone(dtype=half)
        raise UserError(
            f"config.dtype={dtype!r} cannot be given to model={name!r}, which takes no dtype; let "
            "its Linen class have a field `dtype`, or its factory an argument `dtype=None`, and "
            f"give that to every layer; or leave config.dtype at {FLOAT32!r}"
        )

    return cloned


def parameters(factory: Factory) -> list[str]:
    """Names of the arguments of a factory."""
    try:
        return list(inspect.signature(factory).parameters)
    except ValueError:  # Some callables of C have no signature.
        return []


def check_dtype(network: Network, name: str, dtype: str, input_shape: tuple[int, ...]) -> None:
    """Refuses a network that was given a dtype and does not compute in it; nothing is computed.

    Where it computes some products of matrices and convolutions in float32 still, a note says so.

    Args:
        network: that `of_dtype` has had a hand in.
        name: of it, for messages.
        dtype: a value of `config.dtype`.
        input_shape: of one example.

    Raises:
        UserError: it computes nothing in the dtype, or keeps variables in it.
    """
    if dtype == FLOAT32:
        return
    rng_key = jax.eval_shape(jax.random.key, 0)
    inputs = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    variables = jax.eval_shape(network.init, rng_key, inputs)
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != jnp.float32:
            where = path_name(path)
            raise UserError(
                f"config.dtype={dtype!r} is for computations, and model={name!r} keeps {where} in "
                f"{leaf.dtype}; leave its param_dtype at float32"
            )
    jaxpr = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, inputs).jaxpr
    products = [one for one in equations(jaxpr) if one.primitive.name in _PRODUCTS]
    half = [
        one
        for one in products
        if all(getattr(var.aval, "dtype", None) == dtype for var in one.invars)
    ]
    if not half:
        raise UserError(
            f"config.dtype={dtype!r}: model={name!r} takes it, and computes none of its "
            f"{len(products)} products of matrices and convolutions in it; give `dtype` to its "
            f"layers, as in nn.Dense(..., dtype=self.dtype), or leave config.dtype at {FLOAT32!r}"
        )
    if len(half) < len(products):
        note(
            f"config.dtype={dtype!r}: model={name!r} computes {len(half)} of its {len(products)} "
            "products of matrices and convolutions in it, and the others in float32."
        )
