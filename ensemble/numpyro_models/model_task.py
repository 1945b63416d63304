"""The task of sampling a model: a log density with a gradient, and the meaning of its draws."""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from ensemble.draws.store import Draws
from ensemble.errors import InputError, quoted
from ensemble.notes import note
from ensemble.numpyro_models.free_chains import run_on_devices
from ensemble.numpyro_models.model import Model
from ensemble.numpyro_models.model_file import load
from ensemble.numpyro_models.refusals import failed
from ensemble.numpyro_models.results import (
    SiteResults,
    evenly_spread,
    results_of,
    scalar_places,
)
from ensemble.numpyro_models.sharded_model import ShardedModel
from ensemble.sharding import transfer
from ensemble.sharding.layout import Layout
from ensemble.storage.memory import check_memory
from ensemble.task import LogDensity, WithoutExamples

_MAX_TRACKED = 100
_NUM_TRIES = {False: 100, True: 1000}  # By whether starts are drawn from the prior.
_NUM_POINTS = 3


class ModelTask(WithoutExamples):
    """A model whose latents are sampled, on the whole real line.

    Args:
        model: The model.

    Attributes:
        num_train_examples: 1: a gradient is of all data together.
        tracked: Names such as 'theta[0]' of scalars of the latents on the whole real line, 100 at
            most, evenly spread over all.
    """

    num_train_examples: int = 1

    def __init__(self, model: Model):
        self.model = model
        places = scalar_places({name: model.shapes[name].shape for name in model.latent})
        self._numbers = evenly_spread(len(places), _MAX_TRACKED)
        self.tracked = tuple(places[i][0] for i in self._numbers)

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what is sampled, JSON-ready."""
        return {"name": self.model.name, "fingerprint": self._fingerprint, "num_examples": {}}

    @functools.cached_property
    def _fingerprint(self) -> str:
        """Model, data and, roughly, values: another prior is another model."""
        rng = np.random.default_rng(0)
        points = {
            name: rng.normal(0, 0.5, (_NUM_POINTS, *leaf.shape)).astype(np.float32)
            for name, leaf in self.model.shapes.items()
        }
        of_points = jax.jit(jax.vmap(self.model.log_density, in_axes=(0, None)))
        values = np.asarray(of_points(points, self.model.arrays), np.float64)
        parts = [jax.tree.map(np.shape, self.model.shapes), *[f"{value:.3g}" for value in values]]
        for leaf in [*self.model.leaves, *self.model.arrays.values()]:
            is_array = isinstance(leaf, np.ndarray | jax.Array)
            parts.append(np.asarray(leaf).tobytes() if is_array else leaf)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    # What a sampler asks for.

    def params_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of one chain's parameters."""
        return self.model.shapes

    def own_log_density(self, mesh: Mesh, may_split: bool) -> LogDensity:
        """Returns the model's: the rows of its sharded plates are split, other data whole.

        Latents of these rows are split too if they may be, lie in plates of one size, and have it
        as their first axis. Else they are whole on every device, and only the density is divided.
        """
        split = ShardedModel(self.model, mesh)
        return LogDensity(
            split.place,
            split.bind,
            split.layout if may_split else Layout(),
            run_free=None if self.model.rows else run_on_devices,
            bind_reference=split.bind_reference,
        )

    def starts(self, rng_keys: jax.Array, from_prior: bool) -> dict[str, jax.Array]:
        """Finds where chains may start; `ensemble.task.Modelled` has the arguments."""
        model = self.model
        num_tries = _NUM_TRIES[from_prior]

        @jax.jit
        def find(rng_keys: jax.Array, arrays: Any) -> Any:
            def of_chain(rng_key: jax.Array) -> Any:
                def attempt(carry: Any) -> Any:
                    key_start = jax.random.fold_in(rng_key, carry[0])
                    params = model.start(key_start, from_prior, arrays)
                    value, grads = jax.value_and_grad(model.log_density)(params, arrays)
                    values = jnp.append(ravel_pytree(grads)[0], value)
                    is_good = jnp.all(jnp.isfinite(values)) & jnp.any(values[:-1] != 0)
                    return carry[0] + 1, params, is_good

                # The first attempt is the loop's too, so that the program has the model once.
                nothing = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), model.shapes)
                return jax.lax.while_loop(
                    lambda carry: ~carry[2] & (carry[0] < num_tries),
                    attempt,
                    (0, nothing, jnp.bool_(False)),
                )[1:]

            return jax.lax.map(of_chain, rng_keys)

        try:
            params, is_good = transfer.fetch(find(rng_keys, model.arrays))
            chosen = is_good if is_good.any() else slice(None)
            fault = model.fault({name: leaf[chosen] for name, leaf in params.items()})
        except InputError:
            raise
        except Exception as error:  # The model is a program, and may raise anything.
            raise failed(model.name, error) from error
        if not is_good.all():
            fault = fault or "its gradient is zero or not finite there; scale its parameters to 1"
            fault = (
                f"no finite log density with a gradient at any of {num_tries} starts of chain "
                f"{np.argmin(is_good)}: {fault}"
            )
        if fault:
            raise InputError(f"{model.name}: {fault}")
        return params

    def check_starts(self, params: Mapping[str, np.ndarray]) -> None:
        """Refuses faults at starts; `ensemble.task.Modelled` has the arguments."""
        if fault := self.model.fault(params):
            raise InputError(f"{self.model.name}: {fault}")

    # What draws mean.

    def track(self, params: Any) -> jax.Array:
        """Returns the tracked scalars [n] of one draw."""
        flat = [jnp.ravel(params[name]) for name in self.model.latent]
        return jnp.concatenate(flat)[self._numbers]

    def results(self, draws: Draws, first: int, live: Sequence[int]) -> SiteResults:
        """Returns the results of draws; `ensemble.task.Modelled` has the arguments."""
        return results_of(self.model, draws, first, live)


def create(config: ml_collections.FrozenConfigDict, data: Any) -> ModelTask:
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
    model = data() if data else load(config.model, config.data)
    if model.discrete:
        note(
            f"The discrete latents {quoted(model.discrete)} are summed out: there are no draws of "
            "them and of what depends on them, and no LOO."
        )
    num_draws = config.num_chains * config.sampler.num_samples // config.sampler.thinning
    sizes = {name: 4 * num_draws * math.prod(model.sites[name].shape) for name in model.variables}
    largest = max(sizes, key=sizes.__getitem__)
    check_memory(
        3 * sum(sizes.values()),  # Draws, the groups of ArviZ, and the file.
        f"{num_draws:,} draws of {model.name}, whose site {largest!r} takes "
        f"{sizes[largest] / 2**30:.1f} GiB,",
        "config.sampler.num_samples, raise config.sampler.thinning, or leave the site out",
    )
    return ModelTask(model)
