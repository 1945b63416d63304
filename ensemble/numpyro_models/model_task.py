"""The task of sampling a model: a log density with a gradient, and what its variables mean."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.notes import note
from ensemble.numpyro_models import model_file
from ensemble.numpyro_models.free_chains import run_on_devices
from ensemble.numpyro_models.program import Program, depends_on_tracing, digest, scalar_names
from ensemble.numpyro_models.refusals import failed
from ensemble.numpyro_models.results import SiteDraws, SiteResults
from ensemble.numpyro_models.sharded_model import ShardedModel
from ensemble.numpyro_models.sharded_rows import check_rows
from ensemble.sharding import transfer
from ensemble.sharding.mesh import named_sharding
from ensemble.task import LogDensity, WithoutExamples

_MAX_TRACKED = 100
_NUM_TRIES = 100
_NUM_POINTS = 3
_BATCH = 64
_MAX_OBSERVED = 2**26  # Numbers of log likelihoods, and of predictions: 256 MiB each.


@dataclasses.dataclass(frozen=True, eq=False)
class ModelTask(WithoutExamples):
    """A model whose latents are sampled, on the whole real line.

    Attributes:
        program: the model's functions.
        num_train_examples: 1: a gradient is of all data together.
    """

    program: Program
    num_train_examples: int = 1

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what is sampled, JSON-ready."""
        return {"name": self.program.name, "fingerprint": self._fingerprint, "num_examples": {}}

    @functools.cached_property
    def _fingerprint(self) -> str:
        """Model, data and, roughly, values: another prior is another model."""
        rng = np.random.default_rng(0)
        points = {
            name: rng.normal(0, 0.5, (_NUM_POINTS, *leaf.shape)).astype(np.float32)
            for name, leaf in self.program.shapes.items()
        }
        log_densities = jax.jit(jax.vmap(self.program.log_density, in_axes=(0, None)))
        values = np.asarray(log_densities(points, self.program.arrays), np.float64)
        return digest(self.program.identity(), [f"{value:.3g}" for value in values])

    # What a sampler asks for.

    def params_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of one chain's parameters."""
        return self.program.shapes

    def own_log_density(self, mesh: Mesh, may_split: bool) -> LogDensity:
        """The model's: the rows of its sharded plates are split, other data whole everywhere.

        Latents of these rows are split too if they may be, lie in plates of one size, and have it
        as their first axis. Else they are whole on every device, and only their part of the
        density is computed by shards.
        """
        program = self.program
        split = program.on_shards(mesh)
        if split is None:
            return LogDensity(
                lambda: transfer.put(program.arrays, named_sharding(mesh)),
                lambda arrays: lambda params: program.log_density(params, arrays),
                run_free=run_on_devices,
                bind_reference=lambda arrays, sd: (
                    lambda params: program.log_reference(params, arrays, sd)
                ),
            )
        # On one device too, where all is right: what runs there shall run on others.
        keys = jax.random.split(jax.random.key(0), _NUM_POINTS)
        points = jax.vmap(lambda key: program.start(key, False, program.arrays))(keys)
        if not check_rows(split, points):
            check_rows(split, self.starts(keys, from_prior=False))
        layout = split.layout
        if may_split and layout.names:
            return LogDensity(split.place, split.bind, layout)

        def bind(data: Any, of: ShardedModel = split) -> Any:
            return lambda params: of.bind(data)(of.pad(params))

        return LogDensity(
            split.place,
            bind,
            bind_reference=lambda data, sd: bind(data, program.reference_on_shards(split)),
        )

    def starts(self, rng_keys: jax.Array, from_prior: bool) -> dict[str, jax.Array]:
        """Finds where chains may start; `ensemble.task.Modelled` has the arguments."""
        program = self.program

        def attempt(rng_key: jax.Array, arrays: Any) -> Any:
            params = program.start(rng_key, from_prior, arrays)
            value, grads = jax.value_and_grad(program.log_density)(params, arrays)
            is_finite = jnp.isfinite(value) & jnp.all(
                jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads)])
            )
            is_flat = jnp.all(jnp.stack([jnp.all(leaf == 0) for leaf in jax.tree.leaves(grads)]))
            return params, is_finite, is_flat

        @jax.jit
        def find(rng_keys: jax.Array, arrays: Any) -> Any:
            def of_chain(rng_key: jax.Array) -> Any:
                def again(carry: Any) -> Any:
                    i = carry[0]
                    return i + 1, *attempt(jax.random.fold_in(rng_key, i), arrays)

                # The first attempt is the loop's too, so that the program has the model once.
                shapes = program.shapes.items()
                nothing = {name: jnp.zeros(one.shape, one.dtype) for name, one in shapes}
                first = (0, nothing, jnp.bool_(False), jnp.bool_(False))
                return jax.lax.while_loop(lambda c: ~c[2] & (c[0] < _NUM_TRIES), again, first)[1:]

            return jax.lax.map(of_chain, rng_keys)

        try:
            params, is_finite, is_flat = transfer.fetch(find(rng_keys, program.arrays))
            chosen = is_finite if is_finite.any() else slice(None)
            fault = program.fault({name: leaf[chosen] for name, leaf in params.items()})
        except InputError:
            raise
        except Exception as error:  # The model is a program, and may raise anything.
            raise failed(program.name, error) from error
        if not is_finite.all():
            k = int(np.argmin(is_finite))
            why = fault or "its gradient is not finite there; scale the parameters to about 1"
            raise InputError(
                f"{program.name} has no finite log density and gradient at any of {_NUM_TRIES} "
                f"starts of chain {k}: {why}"
            )
        if fault:
            raise InputError(f"{program.name}: {fault}")
        if is_flat.all():
            self._check_varies(params)
        return params

    def check_starts(self, params: Mapping[str, np.ndarray]) -> None:
        """Says what is wrong at starts; `ensemble.task.Modelled` has the arguments."""
        if fault := self.program.fault(params):
            raise InputError(f"{self.program.name}: {fault}")

    def _check_varies(self, params: Mapping[str, np.ndarray]) -> None:
        """Refuses a density that is the same at every start, and far from there."""
        of_starts = jax.jit(jax.vmap(self.program.log_density, (0, None)))
        arrays = self.program.arrays
        values = [
            transfer.fetch(of_starts({name: far * leaf for name, leaf in params.items()}, arrays))
            for far in (1, 10, 100)
        ]
        if np.min(values) == np.max(values):
            raise InputError(
                f"{self.program.name} has the same log density, {np.min(values):.6g} nats, "
                "wherever it is evaluated: it does not depend on what is sampled; compute it from "
                "its parameters"
            )

    # What draws mean.

    @functools.cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's variables."""
        found = jax.eval_shape(self.program.values, self.program.shapes, self.program.arrays)
        return {name: leaf.shape for name, leaf in found.items()}

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """Numbers of the latent scalars that are tracked, evenly spread over all of them."""
        num_scalars = sum(int(np.prod(self._shapes[name])) for name in self.program.latent)
        count = min(_MAX_TRACKED, num_scalars)
        return np.linspace(0, num_scalars - 1, count).astype(int)

    @functools.cached_property
    def tracked(self) -> tuple[str, ...]:
        """Names such as 'theta[0]' of latent scalars, 100 at most."""
        names = scalar_names({name: self._shapes[name] for name in self.program.latent})
        flat = [one for site in names.values() for one in site]
        return tuple(flat[i] for i in self._numbers)

    def track(self, params: Any) -> jax.Array:
        """The tracked scalars [n] of one draw."""
        values = self.program.values(params, self.program.arrays)
        flat = jnp.concatenate(
            [jnp.ravel(values[name]).astype(jnp.float32) for name in self.program.latent]
        )
        return flat[self._numbers]

    def results(self, draws: Draws, first: int, live: Sequence[int]) -> SiteResults:
        """What the draws leave; `ensemble.task.Modelled` has the arguments."""
        return SiteResults(self, draws, first, live)

    def site_draws(self, params: Mapping[str, np.ndarray]) -> SiteDraws:
        """Computes the variables, log likelihoods and predictions of draws [C, K, ...].

        The observed variables of very many draws times observations are those of evenly spaced
        draws.
        """
        program = self.program
        lead = next(iter(params.values())).shape[:2]

        def of_draws(function: Any, params: Any, lead: tuple[int, int]) -> Any:
            num_draws = lead[0] * lead[1]
            # The last batch is filled up: another size would be a second form of the function.
            rows = np.arange(-(-num_draws // _BATCH) * _BATCH) % num_draws
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[rows], params)

            @jax.jit
            def run(flat: Any, arrays: Any) -> Any:
                keys = jax.random.split(jax.random.key(0), num_draws)[rows]
                return jax.lax.map(
                    lambda one: function(*one, arrays), (keys, flat), batch_size=_BATCH
                )

            found = transfer.fetch(run(flat, program.arrays))
            return jax.tree.map(
                lambda leaf: leaf[:num_draws].reshape(*lead, *leaf.shape[1:]), found
            )

        values = of_draws(lambda _, one, arrays: program.values(one, arrays), params, lead)
        # JAX sorts names; a model has an order of its own.
        values = {name: values[name] for name in [*program.latent, *values] if name in values}
        observed = program.observed()
        size = sum(one.size for one in observed.values())
        if not size:
            return SiteDraws(values, {}, {}, {}, program.dims)
        count = max(1, min(lead[1], _MAX_OBSERVED // (size * lead[0])))
        kept = np.linspace(0, lead[1] - 1, count).astype(int)
        thinned = {name: leaf[:, kept] for name, leaf in params.items()}
        log_likelihood, predicted = of_draws(program.observations, thinned, (lead[0], count))
        return SiteDraws(values, log_likelihood, predicted, observed, program.dims)


def create(config: ml_collections.FrozenConfigDict, data: Any) -> ModelTask:
    """Makes the task of a run.

    Args:
        config: of the run.
        data: the `Program` of a calling program; None: `config.model` names a file.

    Raises:
        InputError: the model or its data cannot be used.
    """
    if data is None:
        data = model_file.load(config.model, config.data)
    elif not hasattr(data, "log_density"):
        raise InputError(
            f"data are not for config.model={config.model!r}, a model with arguments of its own: "
            "name their file by config.data, or call ensemble.sample(model, data)"
        )
    if data.warning:
        note(data.warning)
    if depends_on_tracing(data):
        note(
            f"{data.name} is another density whenever it is traced: it seems to draw numbers by "
            "NumPy's or Python's random. A resumed run, other processes and predictions would "
            "have others; draw them beforehand and give them as data, or use numpyro.sample."
        )
    return ModelTask(data)
