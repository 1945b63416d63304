"""Where chains start: at draws of the prior, at the MAP, or at the members of an ensemble."""

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.flatten_util import ravel_pytree

from ensemble.config import model_settings
from ensemble.errors import UserError
from ensemble.methods.mcmc.coordinates import (
    Coordinates,
    as_regression,
    check_kronecker,
    identity,
    kronecker,
)
from ensemble.methods.mcmc.log_density import LogDensity
from ensemble.methods.mcmc.maximum import maximise, on_host, spread
from ensemble.methods.mcmc.model_start import starts_of_model
from ensemble.methods.mcmc.sampler_keys import MAP, PATHFINDER, PRIOR, UNIFORM
from ensemble.predictor import restore
from ensemble.sharding import processes
from ensemble.source import in_memory
from ensemble.sources.features import check_same_backbone
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned, Modelled

logger = logging.getLogger("ensemble")


@functools.partial(jax.jit, static_argnames="num_chains")
def chain_keys(rng_key: jax.Array, num_chains: int) -> tuple[jax.Array, jax.Array]:
    """Keys [C] of the starts and of the draws of chains, by one program."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(rng_key, jnp.arange(num_chains))
    keys_start, keys_draws = jax.vmap(jax.random.split, out_axes=1)(keys)
    return keys_start, keys_draws


def starting_points(
    config: ml_collections.FrozenConfigDict,
    task: Learned | Modelled,
    density: LogDensity,
    rng_keys: jax.Array,
) -> tuple[Coordinates, Any]:
    """Finds the coordinates in which chains move, and where they start.

    Chains that start at the MAP are spread around it, so that R-hat can see whether they have
    forgotten their starts: with the Kronecker mass as that says, a Laplace approximation; else by
    several standard deviations of the parameters, see `spread`.

    Args:
        config: of the run.
        task: what is learned.
        density: of the posterior.
        rng_keys: [C], of the starts.

    Returns:
        The coordinates, and positions [C, ...] in them.

    Raises:
        UserError: `config.init_from` does not suit this run, or the mass the network.
    """
    if isinstance(task, Modelled):
        return identity(), starts_of_model(config, task, density, rng_keys)
    if config.init_from in (UNIFORM, PATHFINDER):
        raise UserError(
            f"config.init_from='{config.init_from}' is for NumPyro models; networks have "
            f"'{PRIOR}', '{MAP}' or a workdir"
        )
    shapes = task.params_shapes()
    whitens = config.hmc.mass == "kronecker"
    found = members = None
    # What they refuse is said before the long search.
    if whitens:
        check_kronecker(task)
    if config.init_from not in (PRIOR, MAP):
        members = members_of(config, task, shapes)
    if whitens or config.init_from == MAP:
        found = find_map(task, density, shapes)
    coordinates = (
        kronecker(task, in_memory(task.dataset, "train"), found, config.temperature)
        if whitens
        else identity()
    )
    if config.init_from == PRIOR:
        params = jax.vmap(task.sample_prior)(rng_keys)
    elif members is not None:
        params = members
    elif whitens:
        return coordinates, jax.vmap(lambda key: standard_normal(key, shapes))(rng_keys)
    else:
        params = spread(density, found, rng_keys)
    return coordinates, jax.vmap(coordinates.from_params)(params)


def find_map(
    task: Learned, density: LogDensity, params_template: Any, max_iterations: int = 1000
) -> Any:
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends as `maximise` does. Logistic regression starts from zero, and is searched in coordinates
    that whiten there. Other networks start as a member does, and end at one of several maxima.

    Args:
        task: network and prior.
        density: of `make_log_density`.
        params_template: tree of arrays or of their shapes.
        max_iterations: limit.

    Returns:
        The parameters at the maximum.

    Raises:
        UserError: the log density is not finite at the start.
    """
    coordinates = identity()
    regression = as_regression(task)
    if regression:
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params_template)
        if regression.priors:
            # There the Kronecker form is exact: nothing is left to stretch.
            train = in_memory(task.dataset, "train")
            coordinates = processes.tree_from_main(kronecker(task, train, params, num_stretched=0))
    else:
        params = density.layout.pad(task.init_variables(jax.random.key(0))["params"])
    flat, unravel = ravel_pytree(coordinates.from_params(params))

    def value_and_grad(
        flat: jax.Array, coordinates: Coordinates, data: Any
    ) -> tuple[jax.Array, jax.Array]:
        logdensity_fn = density.bind(data)
        return jax.value_and_grad(lambda flat: logdensity_fn(coordinates.to_params(unravel(flat))))(
            flat
        )

    result = maximise(
        on_host(value_and_grad, coordinates, density.data),
        np.asarray(flat, np.float64),
        max_iterations,
    )
    if result.nit >= max_iterations:
        logger.warning(
            "The search for the MAP ended at its limit of %d iterations, with a gradient of up to "
            "%.3g nats: where it ended is no maximum.",
            max_iterations,
            np.max(np.abs(result.jac)),
        )
    params = coordinates.to_params(unravel(jnp.asarray(result.x, jnp.float32)))
    return processes.tree_from_main(density.layout.strip(params))


def standard_normal(rng_key: jax.Array, shapes: Any) -> Any:
    """Draws a tree of independent standard normal variables."""
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(rng_key, len(leaves))
    drawn = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def members_of(config: ml_collections.FrozenConfigDict, task: Learned, shapes: Any) -> Any:
    """Reads the parameters [C, ...] of an ensemble's first live members, or of chains' last draws.

    Raises:
        UserError: the workdir has another network or other data, or too few members.
    """
    where = f"config.init_from={config.init_from!r}"
    try:
        restored = restore(Workdir(config.init_from))
    except UserError as error:
        raise UserError(f"{where}: {error}; or use '{PRIOR}' or '{MAP}'") from None
    if restored.config["model"] != config.model:
        raise UserError(
            f"{where} has the model {restored.config['model']!r}, this run {config.model!r}; "
            "both must have the same"
        )
    theirs, ours = model_settings(restored.config), model_settings(config)
    if theirs != ours:
        raise UserError(
            f"{where} has the model {config.model!r} with {theirs or 'its defaults'}, this run "
            f"with {ours or 'its defaults'}; both must have the same"
        )
    if restored.description["fingerprint"] != task.dataset.fingerprint:
        raise UserError(
            f"{where} has learned other data, {restored.description['name']}, than "
            f"{task.dataset.name} as it is split here; both must have the same"
        )
    check_same_backbone(restored.description, task.describe(), where)
    if len(restored.members) < config.num_chains:
        raise UserError(
            f"{where} has {len(restored.members)} live members for {config.num_chains} chains; "
            "lower config.num_chains"
        )
    num_draws, taken = restored.num_draws, restored.members[: config.num_chains]
    if taken != list(range(config.num_chains)):
        logger.warning("%s: chains start from the members %s, which are live.", where, taken)
    chosen = jax.tree.map(
        lambda leaf: jnp.asarray(leaf[num_draws - 1 :: num_draws][: config.num_chains]),
        restored.variables["params"],
    )
    found = jax.tree.map(lambda leaf: leaf.shape[1:], chosen)
    if found != jax.tree.map(lambda leaf: leaf.shape, shapes):
        raise UserError(f"{where} has parameters of other shapes than {config.model!r} has here")
    return chosen
