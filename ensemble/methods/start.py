"""Chains start at draws of the prior, around a maximum, or at what another run has found."""

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import scipy
from flax.traverse_util import flatten_dict
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.config.builtin import MAP, PRIOR, UNIFORM, is_file
from ensemble.data.source import in_memory
from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.methods.coordinates import (
    Coordinates,
    as_regression,
    from_params,
    kronecker,
    to_params,
)
from ensemble.methods.given_weights import check_number, read, run_of
from ensemble.network import path_name
from ensemble.sharding import processes, signals, transfer
from ensemble.storage import weights
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned, LogDensity, Modelled

logger = logging.getLogger("ensemble")

_MAP_ITERATIONS = 1000


def starting_points(
    config: ml_collections.FrozenConfigDict,
    task: Learned | Modelled,
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
        rng_keys: [C], keys of the starts.

    Returns:
        The coordinates, and positions [C, ...] in them, without padding.

    Raises:
        InputError: `config.init_from` does not suit this run, or the mass the network.
    """
    origin = config.init_from
    regression = None
    whitens = config.sampler.mass_matrix == "kronecker"
    # What is refused is said before the long search.
    if not isinstance(task, Modelled):
        if origin == UNIFORM:
            raise InputError(
                f"config.init_from='{UNIFORM}' is for log densities. Use '{PRIOR}' or a workdir"
            )
        regression = as_regression(task)
    if whitens and regression is None:
        raise InputError(
            "config.sampler.mass_matrix='kronecker' needs a linear model: "
            "config.model='logistic_regression'. Use 'identity', 'diagonal', 'low_rank' or 'dense'"
        )
    coordinates = params = None
    if origin not in (PRIOR, MAP, UNIFORM):
        params = given_starts(config, task)
    elif isinstance(task, Modelled):
        params = task.starts(rng_keys, from_prior=origin == PRIOR)
    elif origin == PRIOR:
        params = jax.vmap(task.sample_prior)(rng_keys)
    if whitens and regression is not None:
        train = in_memory(regression.dataset, "train")
        maximum = find_map(regression, density)
        coordinates = kronecker(regression, train, maximum, config.posterior_temperature)
    if params is None:
        draw = functools.partial(pytrees.standard_normal, shapes=task.params_shapes())
        return coordinates, jax.vmap(draw)(rng_keys)
    return coordinates, jax.vmap(functools.partial(from_params, coordinates))(params)


def given_starts(config: ml_collections.FrozenConfigDict, task: Learned | Modelled) -> Any:
    """Reads the parameters [C, ...] of a run's first live members or chains, or of a file.

    Chains give their last draws. A file of weights is one member.

    Raises:
        InputError: They are of another network or model, or too few, or impossible here.
    """
    where = f"config.init_from={config.init_from!r}"
    shapes = task.params_shapes()
    if isinstance(task, Modelled):
        work = Workdir(config.init_from)
        if work.read_config() is None:
            raise InputError(f"{where} is not a workdir; use a workdir, '{UNIFORM}' or '{PRIOR}'")
        kept, numbers = Draws(work.draws).positions()
        if not len(numbers):
            raise InputError(f"{where} has kept no draw; use a workdir of a model, or '{UNIFORM}'")
        found = {name: leaf[:, -1] for name, leaf in flatten_dict(kept, sep="/").items()}
    elif is_file(config.init_from):
        found = read(config.init_from, where)
    else:
        of_run = run_of(config, task, f"use '{PRIOR}'").fitted.last_variables()["params"]
        found = {path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(of_run)}
    leaves = {path_name(path): one for path, one in jax.tree.leaves_with_path(shapes)}
    fits = weights.fitting(found, leaves, leaves, where, str(config.model))
    check_number(config, len(next(iter(fits.values()))), "num_chains")
    first = {name: leaf[: config.num_chains] for name, leaf in fits.items()}
    if isinstance(task, Modelled):
        task.check_starts(first)
    return jax.tree.map_with_path(lambda path, _: jnp.asarray(first[path_name(path)]), shapes)


def find_map(task: Learned, density: LogDensity) -> Any:
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
    regression = as_regression(task)
    if regression:
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
