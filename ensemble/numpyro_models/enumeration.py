"""Discrete latents of a NumPyro model are summed out, by NumPyro's enumeration with funsor.

funsor is imported only where a model has such latents. NumPyro takes much on trust here: values
that do not begin at 0 and axes without a plate give other densities, in silence. So a model is
checked when it is read.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval
from numpyro import handlers
from numpyro.infer.util import constrain_fn

from ensemble.errors import InputError, quoted
from ensemble.numpyro_models.sharded_distributions import MARK
from ensemble.numpyro_models.sites import Trace, kind_of


def discrete_faults(sites: Trace) -> Iterator[str]:
    """Yields why the discrete latents of a model cannot be enumerated, or would be wrongly.

    Without a plate, NumPyro would take the sites of an axis for one.

    Args:
        sites: A trace of the model.
    """
    samples = {name: site for name, site in sites.items() if site["type"] == "sample"}
    discrete = [name for name, site in samples.items() if kind_of(site) == "discrete"]
    for name in discrete:
        fn = sites[name]["fn"]
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
        if MARK in site["infer"]:
            yield (
                f"its site {name!r} is in a sharded_plate, and the discrete latents "
                f"{quoted(discrete)} are summed out in plain plates alone; use numpyro.plate"
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
                    f"it has discrete latents ({quoted(discrete)}), and its site {name!r} "
                    f"an axis of {size} in no plate; put the site into a numpyro.plate, or "
                    "write .to_event()"
                )


def first_free(sites: Trace) -> int:
    """Returns the axis to the left of all plates, negative."""
    frames = [frame for site in sites.values() for frame in site.get("cond_indep_stack", ())]
    return min((frame.dim for frame in frames), default=0) - 1


def enumerated(function: Callable[..., Any], first_free: int) -> Any:
    """Returns a model in which discrete latents have all their values, side by side."""
    # Only models with discrete latents wait for funsor.
    import funsor  # noqa: F401  NumPyro says less if it is not installed.
    from numpyro.contrib.funsor import config_enumerate, enum

    return enum(config_enumerate(function), first_free)


def independent(model: Any, arrays: Any, params: Any, sites: Trace) -> list[str]:
    """Returns the variables whose values do not depend on those of the discrete latents.

    Args:
        model: The `Model`.
        arrays: Arrays among its arguments.
        params: Unconstrained parameters.
        sites: A trace of the model.

    Raises:
        InputError: The range of a latent depends on them.
    """

    def values(discrete: Any) -> list[jax.Array]:
        bound = handlers.substitute(model.bound(arrays), data=discrete)
        found = constrain_fn(bound, (), {}, dict(params), return_deterministic=True)
        return [found[name] for name in model.variables]

    jaxpr = jax.make_jaxpr(values)({name: sites[name]["value"] for name in model.discrete}).jaxpr
    each = np.eye(len(model.variables), dtype=bool).tolist()
    uses = [any(partial_eval.dce_jaxpr(jaxpr, one)[1]) for one in each]
    free = [name for name, is_used in zip(model.variables, uses, strict=True) if not is_used]
    if bounded := [name for name in model.latent if name not in free]:
        raise InputError(
            f"the range of {quoted(bounded)} depends on the discrete latents "
            f"{quoted(model.discrete)}, which are summed out; give it one range"
        )
    return free
