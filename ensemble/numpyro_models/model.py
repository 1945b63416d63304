"""NumPyro models, and log densities, as pure functions of unconstrained latents."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import init_to_uniform
from numpyro.infer.util import compute_log_probs, constrain_fn, potential_energy

from ensemble.errors import InputError, in_one_line, quoted
from ensemble.numpyro_models import enumeration
from ensemble.numpyro_models.refusals import UNTRACED, failed, faults, plain_arguments
from ensemble.numpyro_models.sites import Completed, Trace, is_improper, kind_of, read_sites
from ensemble.sharding import transfer

Params = Mapping[str, Any]
"""Arrays by latent site, on the whole real line."""


class Model:
    """A NumPyro model with its arguments, read once from a trace.

    Arrays among the arguments are traced, so that compiled programs do not hold them as constants.
    A model that needs their values, such as for the size of a plate, gets them as constants.

    Args:
        function: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        name: Name of the model, for messages.
        centre: Position about which chains start; of a log density alone, which has no prior.

    Attributes:
        leaves: Leaves of the tree of arguments.
        arrays: Arrays among the arguments, by number; the functions below take them, or others.
        shapes: Shapes of the parameters of a chain.
        sites: Sites by name, in the model's order.
        rows: Rows of the sites in sharded plates, by name.
        discrete: Names of the latents that are summed out.
        latent: Names of the other latents.
        observed: Names of the observed sites.
        variables: Names of the latents and of what follows from them alone.

    Raises:
        InputError: The model fails, or its posterior cannot be sampled by gradients.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "the model",
        centre: Mapping[str, np.ndarray] | None = None,
    ):
        self.name = name
        self.function: Any = Completed(function)
        arguments = plain_arguments((args, dict(kwargs or {})), name)
        self.leaves, self._structure = jax.tree.flatten(arguments)
        self.arrays: dict[str, Any] = {
            str(i): leaf
            for i, leaf in enumerate(self.leaves)
            if isinstance(leaf, np.ndarray | jax.Array)
        }
        self.has_centre = centre is not None
        self.arrays |= centre or {}
        try:
            self.shapes = self._read(self.arrays)
        except UNTRACED:
            self.arrays = {}
            self.shapes = self._read({})
        if not self.latent:
            raise InputError(
                f"{name} has no {'continuous ' if self.discrete else ''}latent site, so nothing is "
                "to be sampled; write one with numpyro.sample(NAME, DISTRIBUTION), without obs"
            )

    def bound(self, arrays: Params) -> Callable[[], Any]:
        """Returns the model with its arguments, some arrays of which are others."""
        # Arrays of NumPy cannot be indexed by what is traced, as a scan does.
        of_jax = {number: jnp.asarray(array) for number, array in arrays.items()}
        leaves = [of_jax.get(str(i), leaf) for i, leaf in enumerate(self.leaves)]
        args, kwargs = jax.tree.unflatten(self._structure, leaves)
        return functools.partial(self.function, *args, **kwargs)

    def of_kind(self, kind: str) -> list[str]:
        """Returns the names of the sites of a kind."""
        return [name for name, site in self.sites.items() if site.kind == kind]

    # Functions of the parameters.

    def log_density(self, params: Params, arrays: Any, hidden: Sequence[str] = ()) -> jax.Array:
        """Returns log p(data, latents) with the Jacobians of the transforms, nats [].

        Args:
            params: Parameters of a chain.
            arrays: Arrays among the arguments.
            hidden: Names of sites that are left out.
        """
        bound: Any = self.bound(arrays)
        # A scan with discrete latents renames the sites of its first steps.
        bound = handlers.block(
            bound, hide_fn=lambda site: (site.get("name") or "").split("_PREV_")[-1] in hidden
        )
        if self.discrete:
            bound = enumeration.enumerated(bound, self.first_free)
        # TPUs and TF32 would round products to some 3 digits, which are nats here.
        with jax.default_matmul_precision("highest"):
            energy = potential_energy(bound, (), {}, dict(params), enum=bool(self.discrete))
            return -jnp.asarray(energy)

    def log_reference(self, params: Params, arrays: Any, sd: float) -> jax.Array:
        """Returns the log density of the prior, or of normals about the centre, nats [].

        Args:
            params: Parameters of a chain.
            arrays: Arrays among the arguments.
            sd: Standard deviation of the normals.

        Raises:
            InputError: A site is flat, so that there is no such density.
        """
        if self.has_centre:
            densities = [norm.logpdf(params[name], arrays[name], sd).sum() for name in params]
            return jnp.sum(jnp.stack(densities))
        if flat := [name for name, site in self.sites.items() if site.is_flat]:
            raise InputError(
                f"config.method='parallel_tempering' begins at the prior, and that of "
                f"{quoted(flat)} is flat; give it a distribution, or use 'nuts'"
            )
        # By name: NumPyro writes the Jacobians of its transforms as factors, too.
        hidden = [name for name, site in self.sites.items() if site.is_likelihood]
        return self.log_density(params, arrays, hidden)

    def constrained(self, params: Params, arrays: Any) -> dict[str, jax.Array]:
        """Returns latent and deterministic sites in the model's own values."""
        # With some values of discrete latents.
        bound = handlers.seed(self.bound(arrays), jax.random.key(0))
        with jax.default_matmul_precision("highest"):
            return constrain_fn(bound, (), {}, dict(params), return_deterministic=True)

    def values(self, params: Params, arrays: Any) -> dict[str, jax.Array]:
        """Returns `variables`: what does not depend on discrete latents."""
        found = self.constrained(params, arrays)
        return {name: found[name] for name in self.variables}

    def observations(
        self, rng_key: jax.Array, params: Params, arrays: Any
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Returns log likelihoods, elementwise, and new values of the observed sites.

        With discrete latents there are no log likelihoods: they depend on what is summed out.
        There are no new values if the distribution of a site, which a user may have written, has no
        sample method.
        """
        found = self.constrained(params, arrays)
        latents = {name: found[name] for name in self.shapes}
        bound = handlers.substitute(self.bound(arrays), data=latents)
        log_probs = {}
        drawn = {}
        with jax.default_matmul_precision("highest"):
            if not self.discrete:
                sites = handlers.trace(handlers.seed(bound, rng_key)).get_trace()
                log_probs = {n: sites[n]["fn"].log_prob(sites[n]["value"]) for n in self.observed}
            with contextlib.suppress(NotImplementedError):
                free = handlers.uncondition(handlers.seed(bound, rng_key))
                sites = handlers.trace(free).get_trace()
                drawn = {name: sites[name]["value"] for name in self.observed}
        return log_probs, drawn

    def data(self) -> dict[str, np.ndarray]:
        """Returns the values of the observed sites."""
        sites = self._trace(jax.random.key(0), self.arrays)
        return {name: np.asarray(sites[name]["value"]) for name in self.observed}

    def start(self, rng_key: jax.Array, from_prior: bool, arrays: Any) -> dict[str, jax.Array]:
        """Draws from the prior, flat sites evenly, or evenly from -2 to 2 on the real line.

        A log density alone is flat: evenly about its centre.

        Raises:
            InputError: The prior of a log density is not known.
        """
        if from_prior:
            if self.has_centre:
                raise InputError(
                    f"init_from='prior' cannot be used with {self.name}, of which no prior is "
                    "known; use 'uniform'"
                )
            return self._unconstrained(self._trace(rng_key, arrays, flat_only=True))
        keys = jax.random.split(rng_key, len(self.shapes))
        params = {
            name: jax.random.uniform(key, leaf.shape, minval=-2, maxval=2)
            for key, (name, leaf) in zip(keys, self.shapes.items(), strict=True)
        }
        return jax.tree.map(jnp.add, arrays, params) if self.has_centre else params

    def fault(self, params: Mapping[str, np.ndarray]) -> str:
        """Finds what is wrong at parameters [C, ...].

        Returns:
            Sites that are not finite in any chain, or observations that none allows; empty if
            there are none.
        """
        if self.discrete:
            log_density = jax.jit(jax.vmap(self.log_density, (0, None)))(params, self.arrays)
            if np.isfinite(log_density).any():  # Of sites, the values of discrete latents decide.
                return ""
        of_chains = jax.jit(jax.vmap(self._terms, in_axes=(0, None)))
        terms, outside = transfer.fetch(of_chains(params, self.arrays))
        for name, values in outside.items():
            if not np.isnan(values).any():
                return (
                    f"observation {values[0]:.6g} of site {name!r} is outside of what its "
                    "distribution allows at every start; fix the data or the model, or if its "
                    "range depends on latents, set config.init_from='prior'"
                )
        if bad := [name for name, one in terms.items() if not np.isfinite(one).any()]:
            return (
                f"the log density of {quoted(bad)} is {terms[bad[0]][0]} there; look for NaN "
                "among the observations, which must be left out or masked, and for such values "
                "in the model"
            )
        return ""

    def _terms(self, params: Params, arrays: Any) -> Any:
        """Returns log densities by site, and the worst observation that is impossible, or NaN."""
        values = self.constrained(params, arrays)
        bound = handlers.seed(self.bound(arrays), jax.random.key(0))
        terms, sites = compute_log_probs(bound, (), {}, values)
        outside = {}
        for name in self.observed:
            fn = sites[name]["fn"]
            value = jnp.asarray(sites[name]["value"])
            if not (isinstance(fn, dist.MaskedDistribution) or fn.event_shape):
                bad = jnp.ravel(jnp.where(fn.support(value), jnp.nan, value))
                outside[name] = bad[jnp.nanargmax(jnp.abs(bad))]
        return terms, outside

    # Traces.

    def _trace(self, rng_key: jax.Array, arrays: Any, flat_only: bool = False) -> dict[str, Any]:
        """Traces the model, with latents that are drawn evenly on the real line.

        Args:
            rng_key: Key of the draws.
            arrays: Arrays among the arguments.
            flat_only: If True, latents are drawn from the prior, if they are not flat.
        """
        evenly = init_to_uniform()

        def strategy(site: dict[str, Any]) -> Any:
            is_flat = site["type"] == "sample" and is_improper(site["fn"])
            return evenly(site) if is_flat or not flat_only else None

        seeded = handlers.seed(self.bound(arrays), rng_key)
        started = handlers.substitute(seeded, substitute_fn=strategy)
        return dict(handlers.trace(started).get_trace())

    @staticmethod
    def _unconstrained(sites: Trace) -> dict[str, jax.Array]:
        return {
            name: jnp.asarray(biject_to(site["fn"].support).inv(site["value"]), jnp.float32)
            for name, site in sites.items()
            if kind_of(site) in ("latent", "imputed")
        }

    def _read(self, arrays: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Traces the model without computing a value; returns the shapes of its parameters."""

        def run(arrays: Any) -> dict[str, jax.Array]:
            trace = self._trace(jax.random.key(0), arrays)
            for fault in faults(trace):
                raise InputError(f"{self.name}: {fault}")
            self.sites = read_sites(trace)
            self.rows = {name: site.rows for name, site in self.sites.items() if site.rows}
            self.latent = self.of_kind("latent")
            self.discrete = self.of_kind("discrete")
            self.observed = self.of_kind("observed")
            self.variables = [*self.latent, *self.of_kind("deterministic")]
            params = self._unconstrained(trace)
            if self.discrete:
                self.first_free = enumeration.first_free(trace)
                self.variables = enumeration.independent(self, arrays, params, trace)
            return params

        try:
            shapes = jax.eval_shape(run, arrays)
            jax.eval_shape(self.log_density, shapes, arrays)
            return shapes
        except InputError:
            raise
        except Exception as error:  # A model is a program, and may raise anything.
            if arrays and isinstance(error, UNTRACED):
                raise
            raise failed(self.name, error) from error


def density_model(
    logdensity_fn: Callable[[Any], jax.Array], start: Any, name: str = "the log density"
) -> Model:
    """Makes a model of a log density: latents with flat priors, and a factor.

    Args:
        logdensity_fn: Function from a position of one chain to nats [], which JAX can trace and
            differentiate.
        start: Position: an array, or a tree of arrays. Every chain starts within 2 of it in each
            coordinate.
        name: Name of the density, for messages.

    Raises:
        InputError: The function fails, or does not return one real number.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(start)
    centre = {}
    for path, leaf in paths:
        try:
            array = np.asarray(leaf, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the start of {name} must be an array of real numbers, or a tree of them: "
                f"{in_one_line(error)}"
            ) from None
        centre[jax.tree_util.keystr(path, simple=True, separator=".") or "x"] = array

    def model() -> None:
        leaves = [
            numpyro.sample(key, dist.ImproperUniform(constraints.real, leaf.shape, ()))
            for key, leaf in centre.items()
        ]
        found = logdensity_fn(jax.tree.unflatten(structure, leaves))
        kind = jnp.result_type(found)
        shape = jnp.shape(found)
        if shape or not jnp.issubdtype(kind, jnp.floating):
            raise InputError(
                f"{name} returns {kind}{list(shape)} for one position, must be one real number, "
                "nats; sum over the axes"
            )
        numpyro.factor("logdensity_fn", jnp.asarray(found, jnp.float32))

    return Model(model, name=name, centre=centre)
