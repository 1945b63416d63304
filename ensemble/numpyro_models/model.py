"""NumPyro models, and log densities, as pure functions of unconstrained latents: tasks of runs.

Discrete latents are summed out, by NumPyro's enumeration with funsor, which is imported only if a
model has such latents.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree
from jax.interpreters import partial_eval
from jax.scipy.stats import norm
from jax.sharding import Mesh
from numpyro import handlers
from numpyro.infer import init_to_uniform
from numpyro.infer.util import compute_log_probs, constrain_fn, potential_energy

from ensemble.config import Config
from ensemble.config.pieces import given_or_imported
from ensemble.errors import InputError, in_one_line, quoted
from ensemble.notes import note
from ensemble.numpyro_models.free_chains import run_on_devices
from ensemble.numpyro_models.results import evenly_spread, results_of, scalar_places
from ensemble.numpyro_models.sites import (
    UNTRACED,
    Completed,
    Trace,
    faults,
    is_improper,
    kind_of,
    plain_arguments,
    rows_of,
    running,
)
from ensemble.pytrees import ByName, Function
from ensemble.sharding import transfer
from ensemble.sharding.mesh import compiled_soon
from ensemble.sharding.transfer import Layout
from ensemble.storage import npz
from ensemble.storage.memory import check_memory, max_bytes
from ensemble.task import LogDensity, WithoutExamples

Arrays = Mapping[str, Any]
"""Arrays by site, or arguments by number; parameters are latents on the whole real line."""

_PREFIX = "numpyro:"
_MAX_TRACKED = 100
_NUM_TRIES = {False: 100, True: 1000}  # By whether starts are drawn from the prior.
_NUM_POINTS = 3
# TPUs and TF32 would round products to some 3 digits, which are nats here.
_exactly = partial(jax.default_matmul_precision, "highest")


class Model(WithoutExamples):
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
        num_train_examples: 1: a gradient is of all data together.
        arrays: Arrays among the arguments, by number; the functions below take them, or others.
        shapes: Shapes of the parameters of a chain.
        rows: Rows of the sites in sharded plates, by name.
        discrete: Names of the latents that are summed out.
        latent: Names of the other latents, in the model's order.
        observed: Names of the observed sites.
        variables: Shapes of the latents and of what follows from them alone, by name.
        tracked: Names such as 'theta[0]' of scalars of the latents on the whole real line, 100 at
            most, evenly spread over all.

    Raises:
        InputError: The model fails, or its posterior cannot be sampled by gradients.
    """

    num_train_examples = 1

    def __init__(
        self,
        function: Function,
        args: tuple[Any, ...] = (),
        kwargs: Arrays | None = None,
        name: str = "the model",
        centre: Arrays | None = None,
    ):
        self.name = name
        self._function: Any = Completed(function)
        arguments = plain_arguments((args, dict(kwargs or {})), name)
        self._leaves, self._structure = jax.tree.flatten(arguments)
        self.arrays: Arrays = centre or {
            str(i): leaf for i, leaf in enumerate(self._leaves) if _is_array(leaf)
        }
        self._has_centre = centre is not None
        try:
            self._read()
        except InputError as error:
            if not self.arrays or not isinstance(error.__cause__, UNTRACED):
                raise
            self.arrays = {}
            self._read()
        places = scalar_places({name: self.shapes[name].shape for name in self.latent})
        self._numbers = evenly_spread(len(places), _MAX_TRACKED)
        self.tracked = tuple(places[i][0] for i in self._numbers)

    # The sites.

    def _read(self) -> None:
        """Traces the model without computing a value, and finds the shapes of its parameters."""
        with running(self.name):
            self.shapes: Any = jax.eval_shape(self._read_traced, self.arrays)
            jax.eval_shape(self.log_density, self.shapes, self.arrays)

    def _read_traced(self, arrays: Arrays) -> Arrays:
        trace = self._trace(random.key(0), arrays)
        for fault in faults(trace):
            self._refuse(fault)

        def of_kind(kind: str) -> list[str]:
            return [name for name, site in trace.items() if kind_of(site) == kind]

        self.rows = rows_of(trace)
        self.latent = of_kind("latent")
        self.discrete = of_kind("discrete")
        self.observed = of_kind("observed")
        self._likelihoods = [name for name, site in trace.items() if site.get("is_observed")]
        self._flat = [name for name, site in trace.items() if is_improper(site)]
        variables = [*self.latent, *of_kind("deterministic")]
        params = self._unconstrained(trace)
        if self.discrete:
            frames = [frame for one in trace.values() for frame in one.get("cond_indep_stack", ())]
            # The axis to the left of all plates.
            self._first_free = min((frame.dim for frame in frames), default=0) - 1
            variables = self._independent(variables, arrays, params, trace)
        self.variables = {name: np.shape(trace[name]["value"]) for name in variables}
        return params

    def _independent(
        self, variables: list[str], arrays: Arrays, params: Arrays, trace: Trace
    ) -> list[str]:
        """Returns the variables whose values do not depend on those of the discrete latents.

        Raises:
            InputError: The range of a latent depends on them.
        """

        def values(discrete) -> list[Array]:
            bound = handlers.substitute(self.bound(arrays), data=discrete)
            found = constrain_fn(bound, (), {}, dict(params), return_deterministic=True)
            return [found[name] for name in variables]

        jaxpr = jax.make_jaxpr(values)({name: trace[name]["value"] for name in self.discrete}).jaxpr
        each = np.eye(len(variables), dtype=bool).tolist()
        free = [
            name
            for name, one in zip(variables, each, strict=True)
            if not any(partial_eval.dce_jaxpr(jaxpr, one)[1])
        ]
        if bounded := [name for name in self.latent if name not in free]:
            raise InputError(
                f"the range of {quoted(bounded)} depends on the discrete latents "
                f"{quoted(self.discrete)}, which are summed out; give it one range"
            )
        return free

    def _trace(self, rng_key: Array, arrays: Arrays, flat_only: bool = False) -> Trace:
        """Traces the model, with latents that are drawn evenly on the real line.

        Args:
            rng_key: Key of the draws.
            arrays: Arrays among the arguments.
            flat_only: If True, latents are drawn from the prior, if they are not flat.
        """
        evenly = init_to_uniform()

        def strategy(site):
            return evenly(site) if is_improper(site) or not flat_only else None

        seeded = handlers.seed(self.bound(arrays), rng_key)
        started = handlers.substitute(seeded, substitute_fn=strategy)
        return dict(handlers.trace(started).get_trace())

    @staticmethod
    def _unconstrained(trace: Trace) -> Arrays:
        return {
            name: jnp.asarray(dist.biject_to(site["fn"].support).inv(site["value"]), jnp.float32)
            for name, site in trace.items()
            if kind_of(site) in ("latent", "imputed")
        }

    def bound(self, arrays: Arrays) -> Callable[[], Any]:
        """Returns the model with its arguments, some arrays of which are others."""
        # Arrays of NumPy cannot be indexed by what is traced, as a scan does.
        of_jax = {number: jnp.asarray(array) for number, array in arrays.items()}
        leaves = [of_jax.get(str(i), leaf) for i, leaf in enumerate(self._leaves)]
        args, kwargs = jax.tree.unflatten(self._structure, leaves)
        return partial(self._function, *args, **kwargs)

    # Functions of the parameters.

    def log_density(self, params: Arrays, arrays: Arrays, hidden: Sequence[str] = ()) -> Array:
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
            # Only models with discrete latents wait for funsor.
            import funsor  # noqa: F401  NumPyro says less if it is not installed.
            from numpyro.contrib.funsor import config_enumerate, enum

            bound = enum(config_enumerate(bound), self._first_free)
        with _exactly():
            energy = potential_energy(bound, (), {}, dict(params), enum=bool(self.discrete))
            return -jnp.asarray(energy)

    def log_reference(self, params: Arrays, arrays: Arrays, sd: float) -> Array:
        """Returns the log density of the prior, or of normals about the centre, nats [].

        Args:
            params: Parameters of a chain.
            arrays: Arrays among the arguments.
            sd: Standard deviation of the normals.

        Raises:
            InputError: A site is flat, so that there is no such density.
        """
        if self._has_centre:
            densities = [norm.logpdf(params[name], arrays[name], sd).sum() for name in params]
            return jnp.sum(jnp.stack(densities))
        if self._flat:
            raise InputError(
                f"config.method='parallel_tempering' begins at the prior, and that of "
                f"{quoted(self._flat)} is flat; give it a distribution, or use 'nuts'"
            )
        # By name: NumPyro writes the Jacobians of its transforms as factors, too.
        return self.log_density(params, arrays, self._likelihoods)

    def constrained(self, params: Arrays, arrays: Arrays) -> Arrays:
        """Returns latent and deterministic sites in the model's own values."""
        # With some values of discrete latents.
        bound = handlers.seed(self.bound(arrays), random.key(0))
        with _exactly():
            return constrain_fn(bound, (), {}, dict(params), return_deterministic=True)

    def values(self, params: Arrays, arrays: Arrays) -> Arrays:
        """Returns `variables`: what does not depend on discrete latents."""
        found = self.constrained(params, arrays)
        return {name: found[name] for name in self.variables}

    def observations(self, rng_key: Array, params: Arrays, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """Returns log likelihoods, elementwise, and new values of the observed sites.

        With discrete latents there are no log likelihoods: they depend on what is summed out.
        There are no new values if the distribution of a site, which a user may have written, has no
        sample method.
        """
        found = self.constrained(params, arrays)
        latents = {name: found[name] for name in self.shapes}
        seeded = handlers.seed(handlers.substitute(self.bound(arrays), data=latents), rng_key)
        log_probs = {}
        drawn = {}
        with _exactly():
            if not self.discrete:
                sites = handlers.trace(seeded).get_trace()
                log_probs = {n: sites[n]["fn"].log_prob(sites[n]["value"]) for n in self.observed}
            with suppress(NotImplementedError):
                sites = handlers.trace(handlers.uncondition(seeded)).get_trace()
                drawn = {name: sites[name]["value"] for name in self.observed}
        return log_probs, drawn

    def data(self) -> Arrays:
        """Returns the values of the observed sites."""
        trace = self._trace(random.key(0), self.arrays)
        return {name: np.asarray(trace[name]["value"]) for name in self.observed}

    # Starts.

    def start(self, rng_key: Array, from_prior: bool, arrays: Arrays) -> Arrays:
        """Draws from the prior, flat sites evenly, or evenly from -2 to 2 on the real line.

        A log density alone is flat: evenly about its centre.

        Raises:
            InputError: The prior of a log density is not known.
        """
        if from_prior:
            if self._has_centre:
                raise InputError(
                    f"init_from='prior' cannot be used with {self.name}, of which no prior is "
                    "known; use 'uniform'"
                )
            return self._unconstrained(self._trace(rng_key, arrays, flat_only=True))
        keys = random.split(rng_key, len(self.shapes))
        params = {
            name: random.uniform(key, leaf.shape, minval=-2, maxval=2)
            for key, (name, leaf) in zip(keys, self.shapes.items(), strict=True)
        }
        return jax.tree.map(jnp.add, arrays, params) if self._has_centre else params

    def starts(self, rng_keys: Array, from_prior: bool) -> Arrays:
        """Finds where chains may start; `ensemble.task.Modelled` has the arguments."""
        num_tries = _NUM_TRIES[from_prior]

        @compiled_soon
        def find(rng_keys: Array, arrays: Arrays):
            def of_chain(rng_key: Array):
                def attempt(carry):
                    key_start = random.fold_in(rng_key, carry[0])
                    params = self.start(key_start, from_prior, arrays)
                    value, grads = jax.value_and_grad(self.log_density)(params, arrays)
                    values = jnp.append(ravel_pytree(grads)[0], value)
                    is_good = jnp.all(jnp.isfinite(values)) & jnp.any(values[:-1] != 0)
                    return carry[0] + 1, params, is_good

                # The first attempt is the loop's too, so that the program has the model once.
                nothing = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), self.shapes)
                return lax.while_loop(
                    lambda carry: ~carry[2] & (carry[0] < num_tries),
                    attempt,
                    (0, nothing, jnp.bool_(False)),
                )[1:]

            return lax.map(of_chain, rng_keys)

        with running(self.name):
            params, is_good = transfer.fetch(find(rng_keys, self.arrays))
            chosen = is_good if is_good.any() else slice(None)
            fault = self._fault({name: leaf[chosen] for name, leaf in params.items()})
        if not is_good.all():
            fault = fault or "its gradient is zero or not finite there; scale its parameters to 1"
            fault = (
                f"no finite log density with a gradient at any of {num_tries} starts of chain "
                f"{np.argmin(is_good)}: {fault}"
            )
        self._refuse(fault)
        return params

    def check_starts(self, params: Arrays) -> None:
        """Refuses faults at starts; `ensemble.task.Modelled` has the arguments."""
        self._refuse(self._fault(params))

    def _refuse(self, fault: str) -> None:
        if fault:
            raise InputError(f"{self.name}: {fault}")

    def _fault(self, params: Arrays) -> str:
        """Finds what is wrong at parameters [C, ...].

        Returns:
            Sites that are not finite in any chain, or observations that none allows; empty if
            there are none.
        """
        # The values of discrete latents decide whether a site is finite.
        if self.discrete and np.isfinite(self._of_chains(self.log_density, params)).any():
            return ""
        terms, outside = self._of_chains(self._terms, params)
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

    def _of_chains(self, function: Function, params: Arrays):
        """Computes a function of parameters [C, ...], on the host."""
        compiled = compiled_soon(jax.vmap(function, in_axes=(0, None)))
        return transfer.fetch(compiled(params, self.arrays))

    def _terms(self, params: Arrays, arrays: Arrays):
        """Returns log densities by site, and the worst observation that is impossible, or NaN."""
        values = self.constrained(params, arrays)
        bound = handlers.seed(self.bound(arrays), random.key(0))
        terms, sites = compute_log_probs(bound, (), {}, values)
        outside = {}
        for name in self.observed:
            fn = sites[name]["fn"]
            value = jnp.asarray(sites[name]["value"])
            if not (isinstance(fn, dist.MaskedDistribution) or fn.event_shape):
                bad = jnp.ravel(jnp.where(fn.support(value), jnp.nan, value))
                outside[name] = bad[jnp.nanargmax(jnp.abs(bad))]
        return terms, outside

    # The task.

    def describe(self) -> ByName:
        """Returns what a checkpoint says of what is sampled, JSON-ready."""
        return {"name": self.name, "fingerprint": self._fingerprint, "num_examples": {}}

    @cached_property
    def _fingerprint(self) -> str:
        """Model, data and, roughly, values: another prior is another model."""
        rng = np.random.default_rng(0)
        points = {
            name: rng.normal(0, 0.5, (_NUM_POINTS, *leaf.shape)).astype(np.float32)
            for name, leaf in self.shapes.items()
        }
        values = np.asarray(self._of_chains(self.log_density, points), np.float64)
        parts = [jax.tree.map(np.shape, self.shapes), *[f"{value:.3g}" for value in values]]
        for leaf in [*self._leaves, *self.arrays.values()]:
            parts.append(np.asarray(leaf).tobytes() if _is_array(leaf) else leaf)
        return sha256(repr(parts).encode()).hexdigest()[:16]

    def params_shapes(self) -> Arrays:
        """Returns the shapes of one chain's parameters."""
        return self.shapes

    def own_log_density(self, mesh: Mesh, may_split: bool) -> LogDensity:
        """Returns the model's: the rows of its sharded plates are split, other data whole.

        Latents of these rows are split too if they may be, lie in plates of one size, and have it
        as their first axis. Else they are whole on every device, and only the density is divided.
        """
        from ensemble.numpyro_models.sharded_model import ShardedModel  # Which is of this module.

        split = ShardedModel(self, mesh)
        return LogDensity(
            split.place,
            split.bind,
            split.layout if may_split else Layout(),
            run_free=None if self.rows else run_on_devices,
            bind_reference=split.bind_reference,
        )

    def track(self, params: Arrays) -> Array:
        """Returns the tracked scalars [n] of one draw."""
        flat = [jnp.ravel(params[name]) for name in self.latent]
        return jnp.concatenate(flat)[self._numbers]

    def results(self, draws: Any, first: int, live: Sequence[int]) -> Any:
        """Returns the results of draws; `ensemble.task.Modelled` has the arguments."""
        return results_of(self, draws, first, live)


def _is_array(leaf) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array)


def density_model(logdensity_fn: Callable[[Any], Array], start: Any, name: str) -> Model:
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
    with running(f"the start of {name}, which must be a tree of real numbers,"):
        for path, leaf in paths:
            key = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
            centre[key] = np.asarray(leaf, np.float32)

    def model() -> None:
        leaves = [
            numpyro.sample(key, dist.ImproperUniform(dist.constraints.real, leaf.shape, ()))
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


# Models of a configuration.


def create(config: Config, data: Any) -> Model:
    """Makes the task of a run.

    Args:
        config: Configuration of the run.
        data: Function that makes the `Model` of a program; None: `config.model` names a file.

    Raises:
        InputError: The model or its data cannot be used.
    """
    if data is not None and not callable(data):
        raise InputError(
            f"data are not for config.model={config.model!r}, a model with arguments of its own: "
            "name their file by config.data, or call ensemble.sample(model, data)"
        )
    model: Model = data() if data else load(config.model, config.data)
    if model.discrete:
        note(
            f"The discrete latents {quoted(model.discrete)} are summed out: there are no draws of "
            "them and of what depends on them, and no LOO."
        )
    num_draws = config.num_chains * config.sampler.num_samples // config.sampler.thinning
    sizes = {name: 4 * num_draws * math.prod(shape) for name, shape in model.variables.items()}
    largest = max(sizes, key=sizes.__getitem__)
    check_memory(
        3 * sum(sizes.values()),  # Draws, the groups of ArviZ, and the file.
        f"{num_draws:,} draws of {model.name}, whose site {largest!r} takes "
        f"{sizes[largest] / 2**30:.1f} GiB,",
        "config.sampler.num_samples, raise config.sampler.thinning, or leave the site out",
    )
    return model


def load(model: str, data: str) -> Model:
    """Loads a model of a file and its arguments.

    Args:
        model: `numpyro:FILE.py:NAME`.
        data: A `.json` or `.npz` file with the arguments by name; empty: there are none.

    Raises:
        InputError: One of them cannot be used.
    """
    path, _, name = model.removeprefix(_PREFIX).rpartition(":")
    where = f"config.model={model!r}"
    if not model.startswith(_PREFIX) or not path.endswith(".py"):
        raise InputError(f"{where} names no function in a file; use numpyro:FILE.py:NAME")
    function = given_or_imported(f"{Path(path).absolute()}:{name}", where)
    try:
        arguments = _read_arguments(Path(data)) if data else {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"config.data={data!r} cannot be used as arguments: {in_one_line(error)}"
        ) from None
    return Model(function, (), arguments, f"model {name!r}")


def _read_arguments(path: Path) -> ByName:
    """Reads arguments by name; lists of numbers become arrays, whole numbers stay numbers."""
    if path.suffix == ".npz":
        arrays = npz.read_arrays(path, max_bytes())
        # A number of an array without axes may be the size of a plate.
        return {name: one if one.ndim else one.item() for name, one in arrays.items()}
    if path.suffix != ".json":
        raise ValueError("its name must end in .json or .npz")
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError("it must hold an object of arguments by name")
    return {name: np.asarray(one) if isinstance(one, list) else one for name, one in found.items()}
