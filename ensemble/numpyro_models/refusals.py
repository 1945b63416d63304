"""What is said in one line of a model, or a density, that is no program for a sampler."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ensemble.errors import InputError, in_one_line, place_in_own_code
from ensemble.numpyro_models.enumeration import check_discrete
from ensemble.numpyro_models.sites import kind_of
from ensemble.rounding import note_rounding

UNTRACED = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
"""What JAX raises where a program needs the values of an array, and not its shape alone."""

_MAX_INTEGER = 2**31 - 1
_NO_ARRAYS = (list, tuple, dict, str, bytes)


def failed(name: str, error: Exception, place: str = "") -> InputError:
    """What to raise where a user's program has failed.

    Args:
        name: of the program.
        error: that it raised.
        place: in the user's code, where the error's traceback does not tell.
    """
    says = f"{type(error).__name__}: {in_one_line(error, limit=200)}"
    if isinstance(error, UNTRACED):
        says = (
            f"{type(error).__name__}: it needs the values of an array that JAX traces; write "
            "jnp.where or jax.lax.cond in place of if, and jax.numpy in place of numpy"
        )
    place = place_in_own_code(error) or place
    return InputError(f"{name} failed {f'at {place} ' if place else ''}({says})")


def has_lost_a_value(name: str, error: AssertionError) -> InputError:
    """What to raise where a site of a model draws, though the density has a value for it.

    Within a `scan`, NumPyro looks sites up by names that lack the prefix of a scope around it.

    Args:
        name: of the model.
        error: that NumPyro raised, as there are no random numbers.
    """
    place = place_in_own_code(error)
    return InputError(
        f"{name} {f'at {place} ' if place else ''}draws a value where its density needs a given "
        "one; a numpyro.handlers.scope around a scan hides the names in it: put the scope in the "
        "function that is scanned, or leave it out"
    )


def not_enumerated(name: str, error: AssertionError) -> InputError:
    """What to raise where NumPyro's enumeration of a `scan` does not know what to do with a site.

    Args:
        name: of the model.
        error: that NumPyro raised: the Jacobian of a latent with a range is a factor to it.
    """
    place = place_in_own_code(error)
    return InputError(
        f"NumPyro cannot sum out the discrete latents of {name}{f' at {place}' if place else ''}: "
        "beside them, a scan may have no factor, and no latent with a range; write such a latent "
        "as a function of a Normal one"
    )


def check_function(function: Callable[..., Any], name: str) -> None:
    """Refuses what is called without running to its end: a class, a generator, a coroutine.

    Args:
        function: the model, or the log density.
        name: of it.

    Raises:
        InputError: as said.
    """
    code = function if inspect.isroutine(function) else type(function).__call__
    for is_one, kind, remedy in (
        (inspect.isclass(function), "a class", "give an instance that can be called"),
        (inspect.isgeneratorfunction(code), "a generator", "write it without yield"),
        (inspect.iscoroutinefunction(code), "a coroutine", "write it without async"),
    ):
        if is_one:
            raise InputError(f"{name} is {kind}, must be a function; {remedy}")


def plain_arguments(args: Any, name: str) -> Any:
    """Makes arrays of what has the form of one, such as a column of pandas.

    Args:
        args: of the model, in any tree.
        name: of the model.

    Raises:
        InputError: an array holds no numbers, or whole numbers beyond 32 bits.
    """

    def plain(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, jax.Array | np.generic) or not hasattr(leaf, "__array__"):
            return leaf
        array, where = np.asarray(leaf), f"the argument {_shown(path)} of {name}"
        if array.dtype.kind not in "biufc":
            raise InputError(f"{where} has the dtype {array.dtype}, must have numbers")
        is_whole = array.dtype.kind in "iu" and array.size
        if is_whole and max(int(array.max()), -int(array.min())) > _MAX_INTEGER:
            raise InputError(
                f"{where} has whole numbers beyond {_MAX_INTEGER}, which JAX would cut off; make "
                "them floats, or smaller"
            )
        if array.dtype == np.float64 and array.size and np.isfinite(array).all():
            note_rounding(np.atleast_1d(array), where)
        return array

    return jax.tree_util.tree_map_with_path(plain, args)


def _at(key: str, places: Mapping[str, str]) -> str:
    """A site, and where in the user's code it is written, if that is known."""
    return f"{key!r} at {places[key]}" if places.get(key) else repr(key)


def can_draw(fn: Any) -> bool:
    """Whether a distribution has values of its own, as those of users may not."""
    try:
        fn.sample(jax.random.key(0))
    except NotImplementedError:
        return False
    return True


def _shown(path: Any) -> str:
    """A path into `(args, kwargs)` as its name, or its number."""
    keys = [getattr(key, "key", getattr(key, "idx", "")) for key in path[1:]]
    return ".".join(map(str, keys))


def check_data(sites: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Refuses observations that are no array.

    Args:
        sites: a trace of the model.
        places: where in the user's code sites are written, by name.

    Raises:
        InputError: as said.
    """
    for key, site in sites.items():
        if site["type"] == "sample" and isinstance(site["value"], _NO_ARRAYS):
            raise InputError(
                f"site {_at(key, places)} has data that are a {type(site['value']).__name__}, must "
                "be an array; write numpy.asarray"
            )


def check_sites(
    name: str, sites: Mapping[str, Any], again: Mapping[str, Any], places: Mapping[str, str]
) -> None:
    """Refuses a model that changes from call to call, or a site without a real log density.

    Args:
        name: of the model.
        sites: a trace of it.
        again: another trace.
        places: where in the user's code sites are written, by name.

    Raises:
        InputError: as said.
    """
    shapes = [
        {key: jnp.shape(one["value"]) for key, one in of.items() if one["type"] == "sample"}
        for of in (sites, again)
    ]
    for key in {**shapes[0], **shapes[1]}:
        found = [str(one.get(key, "absent")) for one in shapes]
        if found[0] != found[1]:
            raise InputError(
                f"{name} changes from call to call: its site {_at(key, places)} is {found[0]} in "
                f"one and {found[1]} in the next; a model depends on its arguments alone"
            )
    for key, site in sites.items():
        if site["type"] != "sample":
            continue
        value = site["value"]
        if site["is_observed"] and not np.size(value) and not site["fn"].event_shape:
            raise InputError(
                f"site {_at(key, places)} has data of the shape {jnp.shape(value)}, which are "
                "empty; leave them out, with the site"
            )
        try:
            log_prob = site["fn"].log_prob(value)
        except Exception as error:  # A distribution may raise anything.
            raise failed(f"site {key!r} of {name}", error, places.get(key, "")) from error
        if not jnp.issubdtype(jnp.result_type(log_prob), jnp.floating):
            raise InputError(
                f"site {_at(key, places)} has a log density of the dtype "
                f"{jnp.result_type(log_prob)}, must be real; are its data numbers of another kind?"
            )


def check_names(name: str, names: Sequence[str], places: Mapping[str, str]) -> None:
    """Refuses variables that would be one in a file of draws, where slashes are folders, or dots.

    Args:
        name: of the model.
        names: of its variables.
        places: where in the user's code they are written, by name.

    Raises:
        InputError: as said.
    """
    known: dict[str, str] = {}
    for key in names:
        if key in ("chain", "draw"):
            raise InputError(
                f"{name} has a variable {_at(key, places)}, which is the name of an axis of all "
                "draws; give it another"
            )
        folder = next((one for one in names if key.startswith(f"{one}/")), None)
        other = known.setdefault(key.replace("/", "."), key) if folder is None else folder
        if other != key or list(names).count(key) > 1:
            raise InputError(
                f"{name} has the variables {_at(other, places)} and {_at(key, places)}, which "
                "would overwrite each other in files of draws, where a slash is a folder or a dot; "
                "rename one"
            )


def _covers(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether what has the one shape stays of it beside what has the other."""
    try:
        return jnp.broadcast_shapes(shape, other) == shape
    except ValueError:
        return False


def check_site(name: str, site: Mapping[str, Any], place: str) -> None:
    """Refuses a site that gradients cannot sample, or whose data have another shape.

    Raises:
        InputError: as said.
    """
    where = f"{name!r}{f' at {place}' if place else ''}"
    if site["type"] == "param":
        raise InputError(
            f"{where} is a numpyro.param, which has no prior and is not sampled; write "
            "numpyro.sample, or give its value as an argument"
        )
    if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
        raise InputError(
            f"plate {where} takes {site['args'][1]} of {site['args'][0]} rows at random, and a "
            "posterior needs all; leave subsample_size out"
        )
    kind = kind_of(site)
    if kind == "discrete":
        check_discrete(where, site)
    if kind not in ("latent", "observed"):
        return
    fn, shape = site["fn"], jnp.shape(site["value"])
    if kind == "latent" and isinstance(fn, dist.Delta):
        raise InputError(
            f"latent site {where} is a Delta, which has no density; write numpyro.deterministic"
        )
    is_one = not shape and math.prod(fn.shape()) == 1
    if kind == "observed" and not is_one and not _covers(shape, fn.shape()):
        plates = ", ".join(f"{one.name!r} of {one.size}" for one in site["cond_indep_stack"])
        raise InputError(
            f"site {where} has data of the shape {shape}, and its distribution in "
            f"{f'the plates {plates}' if plates else 'no plate'} the shape {fn.shape()}; both must "
            "be the same"
        )
