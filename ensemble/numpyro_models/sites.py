"""Sites of a NumPyro model, as a sampler sees them, and why a model cannot be sampled, a line each.

Discrete latents are summed out by NumPyro's enumeration, which takes much on trust: values that do
not begin at 0 and axes without a plate give other densities, in silence. So a model is checked when
it is read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ensemble.errors import InputError, in_own_code, quoted
from ensemble.numpyro_models.sharded_distributions import MARK
from ensemble.rounding import note_rounding

Trace = Mapping[str, Any]
"""Sites by name, as NumPyro traces them."""

UNTRACED = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
"""What JAX raises where a program needs the values of an array, and not its shape alone."""

_MAX_INTEGER = 2**31 - 1
_WRAPPERS = (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)
_IMPUTED = "imputed"  # In `infer` of a latent that `obs_mask` adds.
_ADDED = "_unobserved"  # How NumPyro ends its name, beside another one that ends in `_observed`.


class Rows(NamedTuple):
    """The axis of an array that counts the rows of a sharded plate.

    Attributes:
        size: Number of rows, without padding.
        axis: Axis that counts them, from the left.
        axis_name: Axis of the mesh that they are spread over.
    """

    size: int
    axis: int
    axis_name: str


class Completed(Messenger):
    """Handler around a model that completes the sites of `obs_mask`.

    NumPyro masks the latents of `obs_mask` in observed rows, so that they would move freely there.
    Here they have their density: nothing else depends on them, and they integrate to one, so that
    the posterior of everything else is the same.
    """

    def __init__(self, fn: Any):
        super().__init__(fn)
        self._names: set[Any] = set()

    def process_message(self, msg: Any) -> None:
        name = msg.get("name") or ""
        self._names.add(name)
        is_added = msg["type"] == "sample" and not msg["is_observed"] and name.endswith(_ADDED)
        if is_added and name.removesuffix(_ADDED) + "_observed" in self._names:
            msg["fn"] = _unmasked(msg["fn"])
            msg["infer"] = {**msg["infer"], _IMPUTED: True}


def _unmasked(fn):
    if isinstance(fn, dist.ExpandedDistribution):
        return _unmasked(fn.base_dist).expand(fn.batch_shape)
    return _unmasked(fn.base_dist) if isinstance(fn, dist.MaskedDistribution) else fn


def kind_of(site: Any) -> str:
    """Returns the kind of a site of a trace.

    Returns:
        'latent', 'imputed' (a latent that `obs_mask` adds), 'discrete' (a latent that is summed
        out), 'observed' or 'deterministic'; empty for factors and plates.
    """
    if site["type"] != "sample":
        return "deterministic" if site["type"] == "deterministic" else ""
    if isinstance(site["fn"], dist.Unit):
        return ""
    if site["is_observed"]:
        return "observed"
    if site["infer"].get(_IMPUTED):
        return "imputed"
    return "discrete" if site["fn"].support.is_discrete else "latent"


def rows_of(trace: Trace) -> dict[str, Rows]:
    """Finds the rows of the sites in sharded plates."""
    found = {}
    for name, site in trace.items():
        plate, axis_name = site.get("infer", {}).get(MARK, ("", ""))
        for frame in site.get("cond_indep_stack", ()):
            if frame.name == plate:
                num_axes = np.ndim(site["value"]) - site["fn"].event_dim
                found[name] = Rows(frame.size, num_axes + frame.dim, axis_name)
    return found


def is_improper(site: Any) -> bool:
    """Tells if nothing can be drawn from a site, below what expands or masks it."""
    fn = site["fn"] if site["type"] == "sample" else None
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)


# Refusals.


@contextmanager
def running(name: str) -> Iterator[None]:
    """Turns an error of a user's program, which may raise anything, into one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        remedy = (
            "; it needs the values of an array that JAX traces; write jnp.where or jax.lax.cond in "
            "place of if, and jax.numpy in place of numpy"
        ) * isinstance(error, UNTRACED)
        raise InputError(f"{name} failed {in_own_code(error)}{remedy}") from error


def plain_arguments(arguments: Any, name: str) -> Any:
    """Makes arrays of what has the form of one, such as a column of pandas.

    Args:
        arguments: Tree of `(args, kwargs)`.
        name: Name of the model.

    Raises:
        InputError: An array holds no numbers, or whole numbers beyond 32 bits.
    """

    def plain(path, leaf):
        if isinstance(leaf, jax.Array | np.generic) or not hasattr(leaf, "__array__"):
            return leaf
        array = np.asarray(leaf)
        shown = jax.tree_util.keystr(path[1:], simple=True, separator=".")
        where = f"the argument {shown} of {name}"
        kind = array.dtype.kind
        is_long = kind in "iu" and np.any(np.abs(array.astype(float)) > _MAX_INTEGER)
        if is_long or kind not in "biufc":
            raise InputError(
                f"{where} has the dtype {array.dtype}, must have numbers, and whole ones up to "
                f"{_MAX_INTEGER}, beyond which JAX would cut them off; make them floats, or smaller"
            )
        if array.dtype == np.float64 and array.size and np.isfinite(array).all():
            note_rounding(np.atleast_1d(array), where)
        return array

    return jax.tree_util.tree_map_with_path(plain, arguments)


def faults(trace: Trace) -> Iterator[str]:
    """Yields what is wrong with a model, whose sites a trace has."""
    samples = {}
    for name, site in trace.items():
        if site["type"] == "sample":
            samples[name] = site
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
    discrete = [name for name, site in samples.items() if kind_of(site) == "discrete"]
    for name in discrete:
        fn = samples[name]["fn"]
        support = np.full(1, -1)
        if fn.has_enumerate_support and not fn.event_shape:
            with jax.ensure_compile_time_eval():
                support = np.ravel(fn.enumerate_support(expand=False))
        if not np.array_equal(support, np.arange(support.size)):
            yield (
                f"latent site {name!r} is discrete, which no gradient moves, and NumPyro cannot "
                "enumerate its values from 0 on; sum it out, as with "
                "numpyro.distributions.MixtureSameFamily, shift it, or observe it"
            )
    for name, site in samples.items() if discrete else ():
        yield from _enumeration_faults(name, site, quoted(discrete))
    if not any(kind_of(site) == "latent" for site in samples.values()):
        yield (
            f"it has no {'continuous ' if discrete else ''}latent site, so nothing is to be "
            "sampled; write one with numpyro.sample(NAME, DISTRIBUTION), without obs"
        )


def _enumeration_faults(name: str, site, discrete: str) -> Iterator[str]:
    """Yields why discrete latents would be summed out wrongly next to a site.

    Without a plate, NumPyro would take the sites of an axis for one.
    """
    if MARK in site["infer"]:
        yield (
            f"its site {name!r} is in a sharded_plate, and the discrete latents {discrete} are "
            "summed out in plain plates alone; use numpyro.plate"
        )
    shape = np.shape(site["value"])
    of_value = shape[: len(shape) - site["fn"].event_dim]
    sizes = np.broadcast_shapes(site["fn"].batch_shape, of_value)
    known = {frame.dim for frame in site["cond_indep_stack"]}
    if "_scan_current_index" in site["infer"]:
        known.add(-len(sizes))  # The steps.
    for i, size in enumerate(sizes):
        if size > 1 and i - len(sizes) not in known:
            yield (
                f"it has discrete latents ({discrete}), and its site {name!r} an axis of {size} in "
                "no plate; put the site into a numpyro.plate, or write .to_event()"
            )
