"""Reasons why a NumPyro model, its arguments or its sites cannot be sampled, a line each."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from ensemble.errors import InputError, in_one_line, place_in_own_code
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
    text = in_one_line(error, limit=200)
    for kinds, remedy in _REMEDIES.items():
        if isinstance(error, kinds):
            text = remedy
    place = place_in_own_code(error)
    at = f"at {place} " if place else ""
    return InputError(f"{name} failed {at}({type(error).__name__}: {text})")


def check_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str
) -> None:
    """Refuses arguments that a model does not take, and a lack of those that it needs.

    Args:
        function: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        where: Origin of the arguments, for the message.

    Raises:
        InputError: The message names the arguments that the model takes.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Python knows none of some callables.
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"{where} does not suit the model {name}{signature}: {in_one_line(error)}; a model may "
            "take **others to leave some unused"
        ) from None


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
        if array.dtype.kind in "iu" and np.any((array > _MAX_INTEGER) | (array < -_MAX_INTEGER)):
            raise InputError(
                f"{where} has whole numbers beyond {_MAX_INTEGER}, which JAX would cut off; make "
                "them floats, or smaller"
            )
        if array.dtype == np.float64 and array.size and np.isfinite(array).all():
            note_rounding(np.atleast_1d(array), where)
        return array

    return jax.tree_util.tree_map_with_path(plain, arguments)


def faults(sites: Trace, places: Mapping[str, str]) -> Iterator[str]:
    """Yields what is wrong with a model.

    Args:
        sites: A trace of the model.
        places: Places in the user's code of sites, by name.
    """

    def at(name: str) -> str:
        return f"{name!r} at {places[name]}" if places.get(name) else repr(name)

    known: dict[str, str] = {}
    for name in filter(lambda name: kind_of(sites[name]), sites):
        folders = [one for one in sites if name.startswith(f"{one}/") and kind_of(sites[one])]
        other = [*folders, known.setdefault(name.replace("/", "."), name)][0]
        if other != name or name in ("chain", "draw"):
            yield (
                f"its variable {at(name)} would overwrite an axis of draws or {at(other)} in files "
                "of draws, where a slash is a folder or a dot; rename it"
            )
    for name, site in sites.items():
        yield from _faults_of_site(at(name), site)
    if any(kind_of(site) == "discrete" for site in sites.values()):
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
        plates = ", ".join(f"{one.name!r} of {one.size}" for one in site["cond_indep_stack"])
        yield (
            f"site {where} has data of the shape {shape}, and its distribution in "
            f"{f'the plates {plates}' if plates else 'no plate'} the shape {fn.shape()}; both must "
            "be the same, and not empty"
        )
    try:
        fn.log_prob(site["value"])
    except Exception as error:  # A distribution may raise anything.
        yield str(failed(f"site {where}", error))
