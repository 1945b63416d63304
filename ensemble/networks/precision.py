"""Networks that compute in half precision, with parameters, outputs and state in float32.

A dtype is given to the factory of a network, such as a Linen class with a field `dtype`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ensemble.errors import InputError

FLOAT32 = "float32"
"""What leaves every module as it is."""

Factory = Callable[..., Any]


def of_dtype(factory: Factory, name: str, dtype: str) -> Factory:
    """A factory of the same networks that compute in a dtype.

    Args:
        factory: of modules or networks, called with the number of outputs and settings.
        name: of the network, for messages.
        dtype: a value of `config.dtype`.

    Returns:
        The factory with the dtype.

    Raises:
        InputError: it takes no dtype.
    """
    if dtype == FLOAT32:
        return factory
    if "dtype" not in parameters(factory):
        raise InputError(
            f"config.dtype={dtype!r} cannot be given to model={name!r}, which takes no dtype; let "
            "its Linen class have a field `dtype`, or its factory an argument `dtype=None`, and "
            f"give that to every layer; or leave config.dtype at {FLOAT32!r}"
        )
    return functools.partial(factory, dtype=getattr(jnp, dtype))


def parameters(factory: Factory) -> Mapping[str, inspect.Parameter]:
    """The arguments of a factory."""
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # Some callables of C have no signature.
        return {}
