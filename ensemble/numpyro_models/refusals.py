"""Reasons why a NumPyro model, its arguments or its sites cannot be sampled, a line each."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from ensemble.errors import InputError, in_own_code
from ensemble.numpyro_models.enumeration import discrete_faults
from ensemble.numpyro_models.sites import Trace, kind_of
from ensemble.rounding import note_rounding

UNTRACED = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
"""What JAX raises where a program needs the values of an array, and not its shape alone."""

_MAX_INTEGER = 2**31 - 1


def failed(name: str, error: Exception) -> InputError:
    """Returns the error to raise where a user's program has failed.

    Args:
        name: Name of the program.
        error: Error that it raised.
    """
    remedy = (
        "; it needs the values of an array that JAX traces; write jnp.where or jax.lax.cond in "
        "place of if, and jax.numpy in place of numpy"
    )
    return InputError(f"{name} failed {in_own_code(error)}{remedy * isinstance(error, UNTRACED)}")


def plain_arguments(arguments: Any, name: str) -> Any:
    """Makes arrays of what has the form of one, such as a column of pandas.

    Args:
        arguments: Tree of `(args, kwargs)`.
        name: Name of the model.

    Raises:
        InputError: An array holds no numbers, or whole numbers beyond 32 bits.
    """

    def plain(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, jax.Array | np.generic) or not hasattr(leaf, "__array__"):
            return leaf
        array = np.asarray(leaf)
        shown = jax.tree_util.keystr(path[1:], simple=True, separator=".")
        where = f"the argument {shown} of {name}"
        if array.dtype.kind not in "biufc":
            raise InputError(f"{where} has the dtype {array.dtype}, must have numbers")
        if array.dtype.kind in "iu" and np.any(np.abs(array.astype(float)) > _MAX_INTEGER):
            raise InputError(
                f"{where} has whole numbers beyond {_MAX_INTEGER}, which JAX would cut off; make "
                "them floats, or smaller"
            )
        if array.dtype == np.float64 and array.size and np.isfinite(array).all():
            note_rounding(np.atleast_1d(array), where)
        return array

    return jax.tree_util.tree_map_with_path(plain, arguments)


def faults(sites: Trace) -> Iterator[str]:
    """Yields what is wrong with a model, whose sites a trace has."""
    for name, site in sites.items():
        if site["type"] == "param":
            yield (
                f"{name!r} is a numpyro.param, which has no prior and is not sampled; write "
                "numpyro.sample, or give its value as an argument"
            )
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            yield (
                f"plate {name!r} takes {site['args'][1]} of {site['args'][0]} rows at random, and "
                "a posterior needs all; leave subsample_size out"
            )
        if kind_of(site) == "observed":
            shape = np.shape(site["value"])
            of_fn = site["fn"].shape()
            pairs = zip_longest(reversed(of_fn), reversed(shape), fillvalue=1)
            if 0 in shape or any(size not in (1, of_value) for size, of_value in pairs):
                yield (
                    f"site {name!r} has data of the shape {shape}, and its distribution, with its "
                    f"plates, the shape {of_fn}; both must be the same, and not empty"
                )
    yield from discrete_faults(sites)
