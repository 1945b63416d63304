"""Chains start at draws of the prior, around a maximum, or at what another run has found."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.config.builtin import MAP, PRIOR, UNIFORM, is_file
from ensemble.data.source import in_memory
from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.methods.coordinates import Coordinates, from_params, kronecker, to_params
from ensemble.methods.given_weights import check_number, named, read, run_of
from ensemble.sharding import processes, signals, transfer
from ensemble.storage import weights
from ensemble.storage.workdir import Workdir
from ensemble.task import LogDensity, Modelled
from ensemble.tasks.supervised import Supervised

logger = logging.getLogger("ensemble")

_MAP_ITERATIONS = 1000


def starting_points(
    config: ml_collections.FrozenConfigDict,
    task: Supervised | Modelled,
    density: LogDensity,
    rng_keys: jax.Array,
) -> tuple[Coordinates | None, Any]:
    """Finds the coordinates in which chains move, and where they start.

    Chains that start at the MAP, which only the Kronecker mass has, start at draws of its Laplace
    approximation, so that R-hat can see whether they have forgotten their starts.

    Args:
        config: Configuration of the run.
        task: What is sampled.
        density: Log density of the posterior.
        rng_keys: Keys of the starts, [C].

    Returns:
        The coordinates, and positions [C, ...] in them, without padding.

    Raises:
        InputError: `config.init_from` does not suit this run, or the mass the network.
    """
    origin = config.init_from
    whitens = config.sampler.mass_matrix == "kronecker"
    # What is refused is said before the long search.
    regression = as_regression(task)
    if whitens and regression is None:
        raise InputError(
            "config.sampler.mass_matrix='kronecker' needs a linear model: "
            "config.model='logistic_regression'. Use 'identity', 'diagonal', 'low_rank' or 'dense'"
        )
    params = None
    if origin not in (PRIOR, MAP, UNIFORM):
        params = given_starts(config, task)
    elif isinstance(task, Modelled):
        params = task.starts(rng_keys, from_prior=origin == PRIOR)
    elif origin == UNIFORM:
        raise InputError(
            f"config.init_from='{UNIFORM}' is for log densities. Use '{PRIOR}' or a workdir"
        )
    elif origin == PRIOR:
        params = jax.vmap(task.sample_prior)(rng_keys)
    coordinates = None
    if whitens and regression is not None:
        maximum = find_map(regression, density)
        train = in_memory(regression.dataset, "train")
        coordinates = kronecker(regression, train, maximum, config.posterior_temperature)
    if params is None:
        shapes = task.params_shapes()
        return coordinates, jax.vmap(lambda key: pytrees.standard_normal(key, shapes))(rng_keys)
    return coordinates, jax.vmap(lambda one: from_params(coordinates, one))(params)


def as_regression(task: Any) -> Supervised | None:
    """Returns the task if it is multinomial logistic regression, whose curvature is known."""
    return task if getattr(task, "is_softmax_regression", False) else None


def given_starts(config: ml_collections.FrozenConfigDict, task: Supervised | Modelled) -> Any:
    """Reads the parameters [C, ...] of a run's first live members or chains, or of a file.

    Chains give their last draws. A file of weights is one member.

    Raises:
        InputError: They are of another network or model, or too few, or impossible here.
    """
    where = f"config.init_from={config.init_from!r}"
    if isinstance(task, Modelled):
        kept, _ = Draws(Workdir(config.init_from).draws).positions()
        if not kept:
            raise InputError(
                f"{where} is not a workdir with draws; use one of this model, '{UNIFORM}' or "
                f"'{PRIOR}'"
            )
        found = named(pytrees.at(kept, np.s_[:, -1]))
    elif is_file(config.init_from):
        found = read(config.init_from, where)
    else:
        run = run_of(config, task, f"use '{PRIOR}'")
        found = named(run.fitted.last_variables()["params"])
    shapes = task.params_shapes()
    own = named(shapes)
    fits = weights.fitting(found, own, own, where, str(config.model))
    leaves = [fits[name] for name in own]
    check_number(config, len(leaves[0]), "num_chains")
    starts = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    starts = jax.tree.map(lambda leaf: jnp.asarray(leaf[: config.num_chains]), starts)
    if isinstance(task, Modelled):
        task.check_starts(starts)
    return starts


def find_map(task: Supervised, density: LogDensity) -> Any:
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends where float32 can no longer tell a step's gain from rounding, or at the limit. Logistic
    regression starts from zero, and is searched in coordinates that whiten there. Other networks
    start as a member does, and end at one of several maxima.

    Args:
        task: Network and prior.
        density: Result of `make_log_density`.

    Returns:
        The parameters at the maximum.

    Raises:
        InputError: The log density is not finite at the start.
    """
    coordinates = None
    if regression := as_regression(task):
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), task.params_shapes())
        # There the Kronecker form is exact: nothing is left to stretch.
        train = in_memory(task.dataset, "train")
        coordinates = processes.tree_from_main(kronecker(regression, train, params, 1.0, 0))
    else:
        params = task.init_variables(jax.random.key(0))["params"]
    flat_start, unravel = ravel_pytree(from_params(coordinates, params))

    @jax.jit
    @jax.value_and_grad
    def of_flat(flat: jax.Array, coordinates: Coordinates | None, data: Any) -> jax.Array:
        moved = to_params(coordinates, unravel(flat))
        return density.bind(data)(density.layout.pad(moved))

    def objective(position: np.ndarray) -> tuple[float, np.ndarray]:
        signals.check()
        flat = jnp.asarray(position, jnp.float32)
        value, grad = transfer.fetch(of_flat(flat, coordinates, density.data))
        return -float(value), -np.asarray(grad, np.float64)

    start = np.asarray(flat_start, np.float64)
    if not np.isfinite(objective(start)[0]):
        raise InputError("the log density is not finite where the search for the MAP starts")
    limits = {"maxiter": _MAP_ITERATIONS, "maxfun": 2 * _MAP_ITERATIONS, "ftol": 1e-9, "gtol": 0}
    result = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=limits)
    logger.info("MAP: log density %.2f nats after %d iterations.", -result.fun, result.nit)
    params = to_params(coordinates, unravel(jnp.asarray(result.x, jnp.float32)))
    return processes.tree_from_main(params)
