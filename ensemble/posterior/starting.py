"""Where chains start: at draws from the prior, at the MAP, or at the members of an ensemble."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from ensemble.classification import Classification
from ensemble.config import MAP, PRIOR
from ensemble.errors import UserError
from ensemble.members import create_member
from ensemble.posterior.coordinates import Coordinates, identity, kronecker
from ensemble.posterior.log_density import LogDensity
from ensemble.posterior.start import find_map, sample_prior


def params_shapes(task: Classification) -> Any:
    """The shapes of one network's parameters."""
    shape = task.dataset.input_shape
    return jax.eval_shape(
        lambda key: create_member(key, task.model, optax.identity(), shape).params,
        jax.random.key(0),
    )


def starting_points(
    config: ml_collections.FrozenConfigDict,
    task: Classification,
    density: LogDensity,
    rng_keys: jax.Array,
) -> tuple[Coordinates, Any]:
    """Finds the coordinates in which chains move, and where they start.

    With the Kronecker mass, chains that start at the MAP are spread around it as the mass says,
    a Laplace approximation, so that R-hat can see whether they have forgotten their starts.

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
    shapes = params_shapes(task)
    whitens = config.hmc.mass == "kronecker"
    found = None
    if whitens or config.init_from == MAP:
        found = find_map(task, density, shapes)
    coordinates = (
        kronecker(task, task.dataset.splits["train"], found, config.temperature)
        if whitens
        else identity()
    )
    if config.init_from == PRIOR:
        params = jax.vmap(lambda key: sample_prior(key, task.priors, shapes))(rng_keys)
    elif config.init_from != MAP:
        params = members_of(config, task, shapes)
    elif whitens:
        return coordinates, jax.vmap(lambda key: standard_normal(key, shapes))(rng_keys)
    else:
        params = jax.tree.map(lambda leaf: jnp.stack([leaf] * config.num_chains), found)
    return coordinates, jax.vmap(coordinates.from_params)(params)


def standard_normal(rng_key: jax.Array, shapes: Any) -> Any:
    """Draws a tree of independent standard normal variables."""
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(rng_key, len(leaves))
    drawn = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def members_of(config: ml_collections.FrozenConfigDict, task: Classification, shapes: Any) -> Any:
    """Reads the parameters [C, ...] of an ensemble's first live members.

    Raises:
        UserError: the workdir has another network or other data, or too few members.
    """
    from ensemble.predictor import restore
    from ensemble.workdir import Workdir

    where = f"config.init_from={config.init_from!r}"
    restored = restore(Workdir(config.init_from))
    if restored.config["model"] != config.model:
        raise UserError(
            f"{where} has the model {restored.config['model']!r}, this run {config.model!r}; "
            "both must have the same"
        )
    if restored.description["fingerprint"] != task.dataset.fingerprint:
        raise UserError(
            f"{where} has learned other data, {restored.description['name']}, than "
            f"{task.dataset.name} as it is split here; both must have the same"
        )
    if len(restored.members) < config.num_chains:
        raise UserError(
            f"{where} has {len(restored.members)} live members for {config.num_chains} chains; "
            "lower config.num_chains"
        )
    members = restored.variables["params"]
    chosen = jax.tree.map(lambda leaf: jnp.asarray(leaf[: config.num_chains]), members)
    found = jax.tree.map(lambda leaf: leaf.shape[1:], chosen)
    if found != jax.tree.map(lambda leaf: leaf.shape, shapes):
        raise UserError(f"{where} has parameters of other shapes than {config.model!r} has here")
    return chosen
