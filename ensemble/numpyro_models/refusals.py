"""Reasons why a NumPyro model, its arguments or its sites cannot be sampled, a line each."""

from collections.abc import Callable, Iterator
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
_REMEDIES = {
    UNTRACED: "it needs the values of an array that JAX traces; write jnp.where or jax.lax.cond in "
    "place of if, and jax.numpy in place of numpy",
    (AssertionError,): "if it draws where its density needs a value: around a scan leave out "
    "numpyro.handlers.scope, and in a scan with discrete latents factors and latents with a range",
}


def failed(name: str, error: Exception) -> InputError:
    """Returns the error to raise where a user's program has failed.

    Args:
        name: Name of the program.
        error: Error that it raised.
    """
    remedies = [f"; {text}" for kinds, text in _REMEDIES.items() if isinstance(error, kinds)]
    return InputError(f"{name} failed {in_own_code(error)}{''.join(remedies)}")


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


def faults(sites: Trace, at: Callable[..., str]) -> Iterator[str]:
    """Yields what is wrong with a model.

    Args:
        sites: A trace of the model.
        at: Returns the names of sites and their places in the user's code.
    """
    known: dict[str, str] = {}
    for name, site in sites.items():
        yield from _faults_of_site(at(name), site)
        if not kind_of(site):
            continue
        folders = [one for one in sites if name.startswith(f"{one}/") and kind_of(sites[one])]
        other = [*folders, known.setdefault(name.replace("/", "."), name)][0]
        if other != name or name in ("chain", "draw"):
            yield (
                f"its variable {at(name)} would overwrite an axis of draws or {at(other)} in files "
                "of draws, where a slash is a folder or a dot; rename it"
            )
    yield from discrete_faults(sites, at)


def _faults_of_site(where: str, site: Any) -> Iterator[str]:
    if site["type"] == "param":
        yield (
            f"{where} is a numpyro.param, which has no prior and is not sampled; write "
            "numpyro.sample, or give its value as an argument"
        )
    if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
        yield (
            f"plate {where} takes {site['args'][1]} of {site['args'][0]} rows at random, and a "
            "posterior needs all; leave subsample_size out"
        )
    if kind_of(site) != "observed":
        return
    fn = site["fn"]
    shape = np.shape(site["value"])
    pairs = [*zip_longest(reversed(fn.shape()), reversed(shape), fillvalue=1)]
    if 0 in shape or any(size not in (1, of_value) for size, of_value in pairs):
        yield (
            f"site {where} has data of the shape {shape}, and its distribution, with its plates, "
            f"the shape {fn.shape()}; both must be the same, and not empty"
        )
    try:
        fn.log_prob(site["value"])
    except Exception as error:  # A distribution may raise anything.
        yield str(failed(f"site {where}", error))
