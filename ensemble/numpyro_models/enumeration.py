"""Discrete latents of a NumPyro model are summed out, by NumPyro's enumeration with funsor.

funsor is imported only where a model has such latents. NumPyro takes much on trust here: values
that do not begin at 0, axes without a plate and statistics over latents give other densities, in
silence. So a model is checked: its shapes when it is read, and numbers before anything is drawn.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from numpyro import handlers
from numpyro.infer.util import constrain_fn

from ensemble.errors import InputError
from ensemble.numpyro_models.sites import Trace, innermost, kind_of
from ensemble.sharding import transfer

_NUM_VALUES = 16  # Of all discrete latents together, at which an enumeration is checked.
_TOLERANCE = 1e-4  # Of a site's log density, relative to it or to 1 nat.
_FIRST = "_PREV_"  # How NumPyro's `scan` begins the names of sites and axes of its first steps,
_TIME = ("_time", _FIRST)  # and those of all its axes.
MISREAD = (
    "the log density of {} changes when all values of the discrete latents are taken side by "
    "side, as by a sum or a mean over them; use each by itself, in its plate, or write the sum "
    "over their values yourself"
)
"""Fault of sites whose enumerated density is another."""


def discrete_faults(sites: Trace, at: Callable[[str], str]) -> Iterator[str]:
    """Yields why the discrete latents of a model cannot be enumerated, or would be wrongly.

    Without a plate, NumPyro would take the sites of an axis for one.

    Args:
        sites: A trace of the model.
        at: Returns the name and the place of a site.
    """
    discrete = [name for name, site in sites.items() if kind_of(site) == "discrete"]
    for name in discrete:
        fn, support = sites[name]["fn"], np.zeros(1)
        if is_known := fn.has_enumerate_support and not fn.event_shape:
            with jax.ensure_compile_time_eval():
                support = np.ravel(fn.enumerate_support(expand=False))
        if not is_known or not np.array_equal(support, np.arange(support.size)):
            yield (
                f"latent site {at(name)} is discrete ({type(innermost(fn)).__name__}), which no "
                "gradient moves, and NumPyro cannot enumerate its values from 0 on; sum it out, as "
                "with numpyro.distributions.MixtureSameFamily, shift it, or observe it"
            )
    for name, site in sites.items():
        if site["type"] == "sample":
            shape = np.shape(site["value"])
            of_value = shape[: len(shape) - site["fn"].event_dim]
            sizes = np.broadcast_shapes(site["fn"].batch_shape, of_value)
            known = {frame.dim for frame in site["cond_indep_stack"]}
            if _is_in_steps(site):
                known.add(-len(sizes))  # The steps.
            for i, size in enumerate(sizes):
                if size > 1 and i - len(sizes) not in known:
                    yield (
                        f"it has discrete latents ({', '.join(discrete)}), and its site {at(name)} "
                        f"an axis of {size} in no plate; put the site into a numpyro.plate, or "
                        "write .to_event()"
                    )


def first_free(sites: Trace) -> int:
    """Returns the axis to the left of all plates, negative.

    Raises:
        InputError: funsor is not installed.
    """
    try:
        import funsor  # noqa: F401
    except ImportError:
        raise InputError(
            "the model has discrete latents, which NumPyro sums out by funsor; run: pip install "
            "'funsor>=0.4.8'"
        ) from None
    frames = [frame for site in sites.values() for frame in site.get("cond_indep_stack", ())]
    return min((frame.dim for frame in frames), default=0) - 1


def enumerated(function: Callable[..., Any], first_free: int) -> Any:
    """Returns a model in which discrete latents have all their values, side by side."""
    # Only models with discrete latents wait for funsor.
    from numpyro.contrib.funsor import config_enumerate, enum

    return enum(config_enumerate(function), first_free)


def dependent(model: Any, arrays: Any, params: Any, sites: Trace) -> list[str]:
    """Returns the variables whose values depend on those of the discrete latents.

    Args:
        model: The `Model`.
        arrays: Arrays among its arguments.
        params: Unconstrained parameters.
        sites: A trace of the model.
    """

    def values(discrete: Any) -> list[jax.Array]:
        bound = handlers.substitute(model.bound(arrays), data=discrete)
        found = constrain_fn(bound, (), {}, dict(params), return_deterministic=True)
        return [found[name] for name in model.variables]

    jaxpr = jax.make_jaxpr(values)({name: sites[name]["value"] for name in model.discrete}).jaxpr
    each = np.eye(len(model.variables), dtype=bool).tolist()
    uses = [any(partial_eval.dce_jaxpr(jaxpr, one)[1]) for one in each]
    return [name for name, is_used in zip(model.variables, uses, strict=True) if is_used]


def misread(model: Any, params: Any) -> list[str]:
    """Returns the sites whose enumerated log density is another than at values that are drawn.

    Number 0 has all latents at their least value, 1 at their largest: of drawn ones a maximum over
    many, as a mean over few, may be what it is over all values side by side.

    Args:
        model: The `Model`.
        params: Parameters [C, ...] of finite densities.
    """
    numbers = np.arange(_NUM_VALUES)
    keys = jax.random.split(jax.random.key(1), _NUM_VALUES)
    points = {name: leaf[numbers % len(leaf)] for name, leaf in params.items()}

    @jax.jit
    def differing(points: Any, arrays: Any) -> Any:
        return jax.lax.map(lambda point: _differing(model, arrays, *point), points)

    found = transfer.fetch(differing((points, keys, numbers), model.arrays))
    return [name for name, differs in found.items() if np.any(differs)]


def _differing(
    model: Any, arrays: Any, params: Any, rng_key: jax.Array, number: jax.Array
) -> dict[str, jax.Array]:
    """Tells by site if its enumerated log density is another than at drawn values.

    Sites within a scan are left out: there, steps follow on each other.
    """
    # Only models with discrete latents wait for funsor.
    import funsor
    from numpyro.contrib.funsor import plate_to_enum_plate
    from numpyro.contrib.funsor import trace as packed_trace

    def trace_at(values: Any) -> Any:
        bound = handlers.seed(model.bound(arrays), rng_key)
        return handlers.trace(handlers.substitute(bound, data=values)).get_trace()

    found = model.constrained(params, arrays)
    values = {name: found[name] for name in params}
    chosen_values = dict(values)
    for name, site in trace_at(values).items():
        if name in model.discrete and not _is_in_steps(site):
            extremes = [jnp.zeros_like(site["value"]), _num_values(site) - 1 + 0 * site["value"]]
            chosen_values[name] = jnp.select([number == 0, number == 1], extremes, site["value"])
    drawn = trace_at(chosen_values)
    enumerated_model = handlers.substitute(
        enumerated(model.bound(arrays), model.first_free), data=values
    )
    with plate_to_enum_plate():
        packed = packed_trace(enumerated_model).get_trace()
    packed = {
        name: site
        for name, site in packed.items()
        if site["type"] == "sample" and not _is_in_scan(name, site)
    }
    chosen = {
        name: funsor.to_funsor(
            drawn[name]["value"],
            funsor.Bint[_num_values(packed[name])],
            {frame.dim: frame.name for frame in drawn[name]["cond_indep_stack"]},
        )
        for name in model.discrete
        if name in packed
    }
    found = {}
    for name, site in packed.items():
        log_prob, axes = site["fn"].log_prob(site["value"]), site["infer"]["dim_to_name"]
        factor = funsor.to_funsor(log_prob, funsor.Real, axes)
        at_chosen = factor(**{key: one for key, one in chosen.items() if key in factor.inputs})
        side_by_side = at_chosen.reduce(funsor.ops.add).data
        terms = drawn[name]["fn"].log_prob(drawn[name]["value"])
        limit = _TOLERANCE * (1 + jnp.sum(jnp.abs(terms)))
        total = jnp.sum(terms)
        is_near = (side_by_side == total) | (jnp.abs(side_by_side - total) <= limit)
        found[name] = ~is_near
    return found


def in_model(name: str) -> str:
    """Returns the name of a site that a scan with discrete latents has renamed."""
    while name.startswith(_FIRST):
        name = name.removeprefix(_FIRST)
    return name


def _num_values(site: Any) -> int:
    return int(site["fn"].enumerate_support(expand=False).shape[0])


def _is_in_steps(site: Any) -> bool:
    """Tells if a site of a trace belongs to a scan."""
    return "_scan_current_index" in site["infer"]


def _is_in_scan(name: str, site: Any) -> bool:
    """Tells if a site of a packed trace belongs to a scan."""
    axes = site["infer"].get("dim_to_name", {}).values()
    return name.startswith(_FIRST) or any(axis.startswith(_TIME) for axis in axes)
