"""A model of NumPyro with its arguments, as pure functions of its unconstrained latents."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.sharding import Mesh
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_uniform
from numpyro.infer.util import compute_log_probs, constrain_fn, potential_energy

from ensemble.errors import InputError, in_own_code
from ensemble.numpyro_models.enumeration import (
    MISREAD,
    Enumeration,
    check_plates,
    enumerate_,
    in_model,
)
from ensemble.numpyro_models.model_arguments import Arguments
from ensemble.numpyro_models.plate_dims import plate_dims
from ensemble.numpyro_models.program import digest, dispersed
from ensemble.numpyro_models.refusals import (
    UNTRACED,
    can_draw,
    check_data,
    check_function,
    check_names,
    check_site,
    check_sites,
    failed,
    has_lost_a_value,
    not_enumerated,
    plain_arguments,
)
from ensemble.numpyro_models.sharded_distributions import MARK
from ensemble.numpyro_models.sharded_model import ShardedModel, make_model
from ensemble.numpyro_models.sites import Places, is_flat, kind_of, read_site
from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA


class NumPyroProgram:
    """A `Program` of a model that NumPyro's own samplers would take.

    Arrays among the arguments are traced, so that they are no constants of compiled programs. A
    model that needs their values, for the size of a plate say, gets them as constants.

    Args:
        function: the model.
        args: of the model.
        kwargs: of the model.
        name: of the model, in messages.

    Raises:
        InputError: the model fails, or its posterior cannot be sampled by gradients.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "the model",
    ):
        self.name = name
        self._function = function
        self._enumeration: Enumeration | None = None
        self._deterministic: list[str] = []  # Those that do not depend on discrete latents.
        check_function(function, name)
        self._given = Arguments(*plain_arguments((args, dict(kwargs or {})), name))
        self.arrays: dict[str, Any] = self._given.arrays
        try:
            self.shapes = self._inspected(self.arrays)
        except UNTRACED:
            self.arrays = {}
            self.shapes = self._inspected({})
        if not self.shapes:
            kind = "continuous latent" if self._enumeration else "latent"
            raise InputError(
                f"{self.name} has no {kind} site, so nothing is to be sampled; write one with "
                "numpyro.sample(NAME, DISTRIBUTION), without obs"
            )

    # The functions of a program.

    def log_density(self, params: Mapping[str, Any], arrays: Any) -> jax.Array:
        """Log p(data, latents) with the Jacobians of the transforms, nats []."""
        return self._log_density_of(self._function, params, arrays)

    def log_reference(self, params: Mapping[str, Any], arrays: Any, sd: float) -> jax.Array:
        """The prior's: the log density without observations and factors.

        Raises:
            InputError: a site is flat, so that there is no such density.
        """
        return self._log_density_of(self._prior, params, arrays)

    @property
    def _prior(self) -> Any:
        flat = [
            name for name, site in self._sites.items() if site.fn == dist.ImproperUniform.__name__
        ]
        if flat:
            raise InputError(
                f"config.method='parallel_tempering' begins at the prior, and that of {flat[0]!r}"
                f"{self._at(flat[0])} is flat; give it a distribution, or use 'nuts'"
            )
        # By name: NumPyro writes the Jacobians of its transforms as factors, too.
        hidden = frozenset(self._likelihood_sites)
        return handlers.block(
            self._function, hide_fn=lambda site: in_model(site.get("name") or "") in hidden
        )

    def values(self, params: Mapping[str, Any], arrays: Any) -> dict[str, jax.Array]:
        """Latent and deterministic sites, but for those that depend on discrete latents."""
        args, kwargs = self._given.having(arrays)
        with jax.default_matmul_precision("highest"):
            found = constrain_fn(
                self._whole_model, args, kwargs, dict(params), return_deterministic=True
            )
        return {name: found[name] for name in [*self.latent, *self._deterministic]}

    @property
    def latent(self) -> list[str]:
        """Names of the latent sites."""
        return self._of_kind("latent")

    def start(self, rng_key: jax.Array, from_prior: bool, arrays: Any) -> dict[str, jax.Array]:
        """Draws from the prior, flat ones evenly, or evenly from -2 to 2 on the real line."""
        if not from_prior:
            return dispersed(rng_key, self.shapes)
        return self._unconstrained(rng_key, arrays, flat_only=True)

    def observations(
        self, rng_key: jax.Array, params: Mapping[str, Any], arrays: Any
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Log likelihoods and new values of the observed sites.

        Beside discrete latents there are no log likelihoods: they depend on what is summed out.
        """
        args, kwargs = self._given.having(arrays)
        names = self._of_kind("observed")
        with jax.default_matmul_precision("highest"):
            found = constrain_fn(self._whole_model, args, kwargs, dict(params))
            latents = handlers.substitute(self._function, data=found)
            sites = handlers.trace(handlers.seed(latents, rng_key)).get_trace(*args, **kwargs)
            log_probs = {
                name: sites[name]["fn"].log_prob(sites[name]["value"])
                for name in names
                if self._enumeration is None
            }
            if self._undrawn:
                return log_probs, {}
            free = handlers.uncondition(handlers.seed(latents, rng_key))
            drawn = handlers.trace(free).get_trace(*args, **kwargs)
        return log_probs, {name: drawn[name]["value"] for name in names}

    def observed(self) -> dict[str, np.ndarray]:
        """The values of the observed sites."""

        @jax.jit  # What is drawn on the way is left out.
        def find(arrays: Any) -> dict[str, jax.Array]:
            sites = self._trace(jax.random.key(0), arrays, init_to_uniform())
            return {name: jnp.asarray(sites[name]["value"]) for name in self._of_kind("observed")}

        return {name: np.asarray(one) for name, one in find(self.arrays).items()}

    def identity(self) -> str:
        """The sites, and the arguments."""
        given = self._given
        return digest(given.form, sorted(self._sites.items(), key=str), *given.leaves)

    def on_shards(self, mesh: Mesh) -> ShardedModel | None:
        """The model with the rows of its sharded plates spread over the mesh, if it has some."""
        if not self._has_sharded_rows:
            return None
        args, kwargs = self._given.having({})
        try:
            found = make_model(self._function, mesh, *args, **kwargs)
        except InputError as error:
            raise InputError(f"{self.name} cannot be split over devices: {error}") from error
        except UNTRACED as error:
            raise InputError(
                f"{self.name} cannot be split over devices: it needs the values of an array "
                f"{in_own_code(error)}; give what it needs, such as a size, as an argument"
            ) from error
        except Exception as error:  # A model is a program, and may raise anything.
            raise InputError(
                f"{self.name} cannot be split over devices: it failed {in_own_code(error)}; use "
                "numpyro.plate, whose rows are whole on every device"
            ) from error
        if found.axis_name != DATA:
            raise InputError(
                f"{self.name} has a sharded_plate with axis_name={found.axis_name!r}, must be "
                f"{DATA!r}; leave it out"
            )
        return found

    def reference_on_shards(self, split: ShardedModel) -> ShardedModel:
        """The prior of the rows and of what they share, as `log_reference`."""
        return dataclasses.replace(split, model=self._prior)

    def fault(self, params: Mapping[str, np.ndarray]) -> str:
        """Sites that are not finite in any chain, or observations that none allows."""
        if self._enumeration is not None:
            of_all = np.asarray(jax.jit(jax.vmap(self.log_density, (0, None)))(params, self.arrays))
            is_finite = np.isfinite(of_all)
            if is_finite.any():  # Of sites, the values of discrete latents decide.
                finite = {name: leaf[is_finite] for name, leaf in params.items()}
                wrong = self._enumeration.misread(self._given.having, finite, self.arrays)
                return MISREAD.format(self._listed(wrong)) if wrong else ""
        of_chains = jax.jit(jax.vmap(self._terms, in_axes=(0, None)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPyro's, of what is said here.
            terms, worst = transfer.fetch(of_chains(params, self.arrays))
        for name, (is_inside, is_nan, example) in worst.items():
            where = f"site {name!r}{self._at(name)}"
            if np.all(is_nan):
                return f"{where} has NaN among its observations; leave them out, or mask them"
            if not np.any(is_inside):
                return (
                    f"observation {example[0]:.6g} of {where} is outside of what its distribution "
                    f"{self._sites[name].fn} allows; fix the data or the model"
                )
        for value, what in ((np.isnan, "NaN"), (np.isinf, "infinite")):
            bad = [name for name, one in terms.items() if np.all(value(one))]
            if bad:
                return (
                    f"the log density of {self._listed(bad)} is {what} there; fix the data or the "
                    "model"
                )
        return ""

    @property
    def warning(self) -> str:
        """What a model without observations samples, and what draws there are not."""
        lines = []
        if self._enumeration is not None:
            lines.append(
                f"The discrete latents {self._listed(self._enumeration.discrete)} are summed out: "
                "there are no draws of them, and no LOO."
            )
            left_out = [
                name for name in self._of_kind("deterministic") if name not in self._deterministic
            ]
            if left_out:
                lines.append(f"Nor are there draws of {self._listed(left_out)}, which need them.")
        if self._undrawn:
            lines.append(
                "There is no posterior predictive: the distribution of "
                f"{self._listed(self._undrawn)} has no sample method."
            )
        elif not (self._of_kind("observed") or self._has_factors):
            lines.append(f"{self.name} observes nothing: these are draws of its prior.")
        return " ".join(lines)

    # How a model is read.

    def _at(self, name: str) -> str:
        """Says where in the user's code a site is written, if that is known."""
        return f" at {self._places[name]}" if self._places.get(name) else ""

    @property
    def _whole_model(self) -> Any:
        """The model, with some values of its discrete latents."""
        is_whole = self._enumeration is None
        return self._function if is_whole else handlers.seed(self._function, jax.random.key(0))

    def _log_density_of(
        self, function: Callable[..., Any], params: Mapping[str, Any], arrays: Any
    ) -> jax.Array:
        args, kwargs = self._given.having(arrays)
        # TPUs and TF32 would round products to some 3 digits, which are nats here.
        with jax.default_matmul_precision("highest"):
            if self._enumeration is not None:
                of_function = dataclasses.replace(self._enumeration, function=function)
                return of_function.log_density(args, kwargs, params)
            return -jnp.asarray(potential_energy(function, args, kwargs, dict(params)))

    def _enumerate(self, sites: Mapping[str, Any], args: Any, kwargs: Any, params: Any) -> None:
        """Prepares to sum out the discrete latents, and tells what depends on them."""
        if not (discrete := self._of_kind("discrete")):
            return
        if self._has_sharded_rows:
            raise InputError(
                f"{self.name} has a sharded_plate, and the discrete latents "
                f"{self._listed(discrete)}, which are not summed out by shards; use numpyro.plate"
            )
        check_plates(self.name, sites, discrete, self._places)
        self._enumeration = enumerate_(self._function, sites, discrete)
        names = [*self.latent, *self._deterministic]
        dependent = self._enumeration.dependent(args, kwargs, params, sites, names)
        if bounded := [name for name in self.latent if name in dependent]:
            raise InputError(
                f"the range of {self._listed(bounded)} depends on the discrete latents "
                f"{self._listed(discrete)}, which are summed out; give it one range"
            )
        self._deterministic = [name for name in self._deterministic if name not in dependent]

    def _listed(self, names: Sequence[str]) -> str:
        return ", ".join(f"{name!r}{self._at(name)}" for name in names)

    def _of_kind(self, kind: str) -> list[str]:
        return [name for name, site in self._sites.items() if site.kind == kind]

    def _trace(self, rng_key: jax.Array, arrays: Any, strategy: Any) -> dict[str, Any]:
        args, kwargs = self._given.having(arrays)
        model = handlers.substitute(handlers.seed(self._function, rng_key), substitute_fn=strategy)
        found: dict[str, Any] = handlers.trace(model).get_trace(*args, **kwargs)
        return found

    def _unconstrained(
        self, rng_key: jax.Array, arrays: Any, flat_only: bool
    ) -> dict[str, jax.Array]:
        """Latents that are drawn, on the real line."""
        evenly = init_to_uniform()

        def strategy(site: dict[str, Any]) -> Any:
            if flat_only and not (site["type"] == "sample" and is_flat(site["fn"])):
                return None
            return evenly(site)

        sites = self._trace(rng_key, arrays, strategy)
        return {
            name: jnp.asarray(biject_to(site["fn"].support).inv(site["value"]), jnp.float32)
            for name, site in sites.items()
            if kind_of(site) == "latent"
        }

    def _inspected(self, arrays: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Traces the model without computing a value; returns the shapes of its parameters."""

        def run(arrays: Any) -> dict[str, jax.Array]:
            places = Places()
            with places:
                sites = self._trace(jax.random.key(0), arrays, init_to_uniform())
            self._places = places.found
            check_data(sites, places.found)
            sampled = {name: site for name, site in sites.items() if site["type"] == "sample"}
            self._has_factors = any(isinstance(site["fn"], dist.Unit) for site in sampled.values())
            self._likelihood_sites = [name for name, site in sampled.items() if site["is_observed"]]
            self._has_sharded_rows = any(MARK in one.get("infer", {}) for one in sites.values())
            self._sites = {name: read_site(site) for name, site in sites.items() if kind_of(site)}
            check_names(self.name, list(self._sites), places.found)
            for name, site in sites.items():
                check_site(name, site, places.found.get(name, ""))
            self._undrawn = [
                name for name in self._of_kind("observed") if not can_draw(sites[name]["fn"])
            ]
            again = self._trace(jax.random.key(0), arrays, init_to_uniform())
            check_sites(self.name, sites, again, places.found)
            params = self._unconstrained(jax.random.key(0), arrays, flat_only=False)
            self._enumeration = None
            self._deterministic = self._of_kind("deterministic")
            self._enumerate(sites, *self._given.having(arrays), params)
            reported = [*self.latent, *self._deterministic, *self._of_kind("observed")]
            self.dims = plate_dims({name: sites[name] for name in self._sites if name in reported})
            return params

        try:
            shapes = jax.eval_shape(run, arrays)
            try:
                jax.eval_shape(self.log_density, shapes, arrays)
            except AssertionError as error:  # The same model has not raised it with random numbers.
                says = has_lost_a_value if self._enumeration is None else not_enumerated
                raise says(self.name, error) from error
            return shapes
        except InputError:
            raise
        except Exception as error:  # A model is a program, and may raise anything.
            if arrays and isinstance(error, UNTRACED):
                raise
            raise failed(self.name, error) from error

    def _terms(self, params: Mapping[str, Any], arrays: Any) -> Any:
        """Log densities by site; of observed ones whether all values are possible, whether one is
        NaN, and one that is not possible."""
        args, kwargs = self._given.having(arrays)
        model = self._whole_model
        values = constrain_fn(model, args, kwargs, dict(params))
        terms, sites = compute_log_probs(model, args, kwargs, values)
        worst = {}
        for name in self._of_kind("observed"):
            fn, value = sites[name]["fn"], jnp.asarray(sites[name]["value"])
            if isinstance(fn, dist.MaskedDistribution) or fn.event_shape:
                continue  # What is masked may be anything.
            inside = fn.support(value) & jnp.ones(fn.shape(), bool)
            value = jnp.broadcast_to(value, inside.shape)
            example = jnp.ravel(value)[jnp.argmin(jnp.ravel(inside))] * 1.0
            worst[name] = jnp.all(inside), jnp.any(jnp.isnan(value)), example
        return terms, worst
