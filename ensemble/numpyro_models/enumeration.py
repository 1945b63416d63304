"""Discrete latents of a NumPyro model are summed out, by NumPyro's enumeration with funsor.

funsor is imported only where a model has such latents. NumPyro takes much on trust here: values
that do not begin at 0, axes without a plate and statistics over latents give other densities, in
silence. So a model is checked: its shapes when it is read, and numbers before anything is drawn.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.util import constrain_fn, potential_energy

from ensemble.errors import InputError
from ensemble.numpyro_models.sites import innermost
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
"""A fault of sites whose enumerated density is another."""
_REMEDY = "sum it out, as with numpyro.distributions.MixtureSameFamily, or observe it"


def check_discrete(where: str, site: Mapping[str, Any]) -> None:
    """Refuses a discrete latent that NumPyro cannot enumerate, or would enumerate wrongly.

    Args:
        where: name and place of the site.
        site: NumPyro's.

    Raises:
        InputError: as said.
    """
    fn = site["fn"]
    kind = f"latent site {where} is discrete ({type(innermost(fn)).__name__}), which no gradient"
    if not fn.has_enumerate_support or fn.event_shape:
        raise InputError(f"{kind} moves, and NumPyro cannot enumerate it; {_REMEDY}")
    if site["infer"].get("enumerate", "parallel") != "parallel":
        raise InputError(
            f"latent site {where} has infer={{'enumerate': {site['infer']['enumerate']!r}}}, must "
            "be 'parallel', or left out"
        )
    with jax.ensure_compile_time_eval():
        support = np.ravel(fn.enumerate_support(expand=False))
    if not np.array_equal(support, np.arange(support.size)):
        raise InputError(
            f"{kind} moves, and its values {support[0]} to {support[-1]} do not begin at 0, as "
            "NumPyro's enumeration has it; shift them in the model"
        )


def check_plates(
    name: str, sites: Mapping[str, Any], discrete: list[str], places: Mapping[str, str]
) -> None:
    """Refuses an axis without a plate: there NumPyro would take the sites for one.

    Args:
        name: of the model.
        sites: a trace of it.
        discrete: names of its discrete latents.
        places: where in the user's code sites are written, by name.

    Raises:
        InputError: as said.
    """
    for key, site in sites.items():
        if site["type"] != "sample":
            continue
        shape = jnp.shape(site["value"])
        of_value = shape[: len(shape) - site["fn"].event_dim]
        sizes = np.broadcast_shapes(site["fn"].batch_shape, of_value)
        known = {frame.dim for frame in site["cond_indep_stack"]}
        if _is_in_steps(site):
            known.add(-len(sizes))  # The steps.
        unnamed = [size for i, size in enumerate(sizes) if size > 1 and i - len(sizes) not in known]
        if unnamed:
            raise InputError(
                f"{name} has discrete latents ({', '.join(discrete)}), and its site {key!r}"
                f"{f' at {places[key]}' if places.get(key) else ''} an axis of {unnamed[0]} in no "
                "plate; put the site into a numpyro.plate, or write .to_event()"
            )


@dataclasses.dataclass(frozen=True)
class Enumeration:
    """The log density of a model's latents, the discrete ones summed out; made by `enumerate_`.

    Attributes:
        function: the model.
        discrete: names of its discrete latents.
        first_free: the axis to the left of all plates, negative.
    """

    function: Callable[..., Any]
    discrete: list[str]
    first_free: int

    @property
    def _enumerated(self) -> Any:
        # Only models with discrete latents wait for funsor.
        from numpyro.contrib.funsor import config_enumerate, enum

        return enum(config_enumerate(self.function), self.first_free)

    def log_density(self, args: Any, kwargs: Any, params: Mapping[str, Any]) -> jax.Array:
        """Nats [] at unconstrained parameters, with the Jacobians."""
        found = potential_energy(self._enumerated, args, kwargs, dict(params), enum=True)
        return -jnp.asarray(found)

    def dependent(
        self,
        args: Any,
        kwargs: Any,
        params: Mapping[str, Any],
        sites: Mapping[str, Any],
        names: Sequence[str],
    ) -> list[str]:
        """Which variables have values that depend on those of the discrete latents.

        Args:
            args: of the model.
            kwargs: of the model.
            params: unconstrained.
            sites: a trace of the model.
            names: of the variables.
        """

        def value(name: str, values: Any) -> Any:
            model = handlers.substitute(self.function, data=values)
            found = constrain_fn(model, args, kwargs, dict(params), return_deterministic=True)
            return found[name]

        twice = {name: jnp.stack([sites[name]["value"]] * 2) for name in self.discrete}
        found = []
        for name in names:
            try:  # What is mapped depends on what it is mapped over.
                jax.eval_shape(jax.vmap(functools.partial(value, name), out_axes=None), twice)
            except ValueError as error:
                if "out_axes" not in str(error):
                    raise
                found.append(name)
        return found

    def misread(
        self, having: Callable[[Any], Any], params: Mapping[str, Any], arrays: Any
    ) -> list[str]:
        """Names of the sites whose enumerated log density is another than at values.

        Args:
            having: from arrays to the arguments of the model.
            params: [C, ...], of finite densities.
            arrays: among the arguments.
        """
        numbers = np.arange(_NUM_VALUES)
        keys = jax.random.split(jax.random.key(1), _NUM_VALUES)
        points = {name: leaf[numbers % len(leaf)] for name, leaf in params.items()}

        @jax.jit
        def differing(of_values: Any, arrays: Any) -> Any:
            args, kwargs = having(arrays)
            return jax.lax.map(lambda one: self.differing(args, kwargs, *one), of_values)

        found = transfer.fetch(differing((points, keys, numbers), arrays))
        return [name for name, differs in found.items() if np.any(differs)]

    def differing(
        self,
        args: Any,
        kwargs: Any,
        params: Mapping[str, Any],
        rng_key: jax.Array,
        number: jax.Array,
    ) -> dict[str, jax.Array]:
        """By site, whether its enumerated log density is another than at values that are drawn.

        Number 0 has all latents at their least value, 1 at their largest: of drawn ones a maximum
        over many, as a mean over few, may be what it is over all values side by side. Sites within
        a scan are left out: there, steps follow on each other.
        """
        # Only models with discrete latents wait for funsor.
        import funsor
        from numpyro.contrib.funsor import plate_to_enum_plate
        from numpyro.contrib.funsor import trace as packed_trace

        seeded = handlers.seed(self.function, rng_key)
        values = constrain_fn(seeded, args, kwargs, dict(params))
        at_first = handlers.substitute(seeded, data=values)
        latents = handlers.trace(at_first).get_trace(*args, **kwargs)
        chosen_values = {
            name: jnp.select(
                [number == 0, number == 1],
                [jnp.zeros_like(one["value"]), jnp.full_like(one["value"], _num_values(one) - 1)],
                one["value"],
            )
            for name, one in latents.items()
            if name in self.discrete and not _is_in_steps(one)
        }
        at_values = handlers.substitute(seeded, data=values | chosen_values)
        drawn = handlers.trace(at_values).get_trace(*args, **kwargs)
        model = handlers.substitute(self._enumerated, data=values)
        with plate_to_enum_plate():
            packed = packed_trace(model).get_trace(*args, **kwargs)
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
            for name in self.discrete
            if name in packed
        }
        found = {}
        for name, site in packed.items():
            factor = funsor.to_funsor(
                site["fn"].log_prob(site["value"]), funsor.Real, site["infer"]["dim_to_name"]
            )
            chosen_factor = factor(
                **{key: one for key, one in chosen.items() if key in factor.inputs}
            )
            enumerated = chosen_factor.reduce(funsor.ops.add).data
            terms = drawn[name]["fn"].log_prob(drawn[name]["value"])
            limit = _TOLERANCE * (1 + jnp.sum(jnp.abs(terms)))
            difference = jnp.abs(enumerated - jnp.sum(terms))
            found[name] = ~((enumerated == jnp.sum(terms)) | (difference <= limit))
        return found


def enumerate_(
    function: Callable[..., Any], sites: Mapping[str, Any], discrete: list[str]
) -> Enumeration:
    """Prepares the enumeration of a model's discrete latents.

    Args:
        function: the model.
        sites: a trace of it.
        discrete: names of its discrete latents.

    Raises:
        InputError: funsor is not installed.
    """
    try:
        import funsor  # noqa: F401
    except ImportError:
        raise InputError(
            f"the model has discrete latents ({', '.join(discrete)}), which NumPyro sums out by "
            "funsor; run: pip install 'funsor>=0.4.8'"
        ) from None
    frames = [frame for one in sites.values() for frame in one.get("cond_indep_stack", ())]
    return Enumeration(function, discrete, min((one.dim for one in frames), default=0) - 1)


def in_model(name: str) -> str:
    """The name that a model gives to a site which a scan with discrete latents has renamed."""
    while name.startswith(_FIRST):
        name = name.removeprefix(_FIRST)
    return name


def _num_values(site: Mapping[str, Any]) -> int:
    """How many values a discrete latent has."""
    return int(site["fn"].enumerate_support(expand=False).shape[0])


def _is_in_steps(site: Mapping[str, Any]) -> bool:
    """Whether a site of a trace belongs to a scan."""
    return "_scan_current_index" in site["infer"]


def _is_in_scan(name: str, site: Mapping[str, Any]) -> bool:
    """Whether a site of a packed trace belongs to a scan."""
    axes = site["infer"].get("dim_to_name", {}).values()
    return name.startswith(_FIRST) or any(axis.startswith(_TIME) for axis in axes)
