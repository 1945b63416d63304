"""Weights that members start from, of a file or of another run: `config.init_from`.

The head, which is every array whose shape depends on the number of outputs, is new for each member,
and so are the likelihood's own parameters. All other arrays are those of the file. Where it is an
ensemble of L members, member k starts as its live member number k mod L. Checkpoints have a digest
of what was read, so that a run does not go on from other weights.
"""

import hashlib
import logging
import operator
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import traverse_util

from ensemble import networks, pytrees
from ensemble.config import settings
from ensemble.config.builtin import is_file
from ensemble.config.pieces import resolve
from ensemble.data.source import check_same_data
from ensemble.errors import InputError, listed
from ensemble.network import Variables, path_name
from ensemble.runtime.algorithm import Start
from ensemble.storage import weights
from ensemble.storage.paths import user_path
from ensemble.storage.workdir import Workdir
from ensemble.tasks.supervised import Supervised

logger = logging.getLogger("ensemble")


def start(config: ml_collections.FrozenConfigDict, task: Supervised) -> Start:
    """Reads the weights that the members of a run start from.

    Args:
        config: Configuration of the run.
        task: What the members learn, by a network that the weights must fit.

    Returns:
        A nested dict [L, ...], with the paths of a network's variables, and a digest, which all
        members share: those that come later must start from the same.

    Raises:
        InputError: They cannot be read, or do not fit the network, or make members the same.
    """
    what = f"config.init_from={config.init_from!r}"
    found = read(config.init_from, what)
    variables = jax.eval_shape(task.init_variables, jax.random.key(0))
    shapes = named(variables)
    outputs = task.likelihood.num_outputs
    narrow, wide = (_shapes(config, task, number) for number in (outputs, outputs + 1))
    body = {name for name, leaf in narrow.items() if wide.get(name) == leaf}
    head = sorted(shapes.keys() - body)
    if not body:
        raise InputError(
            f"{what}: config.model={config.model!r} is nothing but a head, which is new for each "
            "member; leave it out"
        )
    fits = weights.fitting(found, shapes, body, what, config.model)
    number = len(next(iter(fits.values())))

    @jax.jit
    def draw(rng_key: jax.Array) -> list[jax.Array]:
        variables = named(task.init_variables(rng_key))
        return [variables[name] for name in head]  # Nothing else is computed.

    # Members that see the same batches and draw no noise must not start alike.
    are_alike = config.shuffle == "shared" and not task.traits.is_random
    if are_alike and number < config.ensemble_size:
        heads = [draw(jax.random.key(seed)) for seed in (0, 1)]
        if jax.tree.all(jax.tree.map(jnp.array_equal, *heads)):
            raise InputError(
                f"{what}: members that start from the same weights would stay the same, for the "
                f"head of config.model={config.model!r} always starts alike; set "
                "config.shuffle='independent'"
            )
    logger.info(
        "Members start from %s: %d arrays of networks: %d. New for each member: %s.",
        config.init_from,
        len(fits),
        number,
        listed(head),
    )
    digest = hashlib.blake2b(digest_size=8)  # The same from any file.
    for name in sorted(found):
        digest.update(f"{name} {found[name].shape} {found[name].dtype};".encode())
        digest.update(found[name].tobytes())
    paths = map(path_name, (path for path, _ in jax.tree.leaves_with_path(variables)))
    given = {path: fits[name] for path, name in zip(paths, shapes, strict=True) if name in fits}
    return Start(
        {"weights": np.frombuffer(digest.digest(), np.uint32)},
        traverse_util.unflatten_dict(given, sep="/"),
    )


def with_given(variables: Variables, given: Variables) -> Variables:
    """Puts what is given to a member in the place of what it would have started with."""
    arrays = {path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(given)}
    return jax.tree.map_with_path(lambda path, leaf: arrays.get(path_name(path), leaf), variables)


def named(tree: Any) -> dict[str, Any]:
    """Returns the leaves of variables, or of parameters, by name: without `params/` in front."""
    leaves = jax.tree.leaves_with_path(tree)
    return {path_name(path).removeprefix("params/"): leaf for path, leaf in leaves}


def run_of(config: ml_collections.FrozenConfigDict, task: Supervised, instead: str) -> Any:
    """Restores the run `config.init_from`, which has learned the same data by the same network.

    Args:
        config: Configuration of the run that starts.
        task: What it learns.
        instead: What else it may start from, for the message.

    Raises:
        InputError: It is none, or has learned something else.
    """
    what = f"config.init_from={config.init_from!r}"
    restored = _restored(config.init_from, what, instead)
    check_same_data(what, restored.description["fingerprint"], task.dataset.fingerprint)
    theirs, ours = ((one["model"], settings("model", one)) for one in (restored.config, config))
    params = restored.fitted.last_variables()["params"]
    shapes = (jax.tree.map(np.shape, one) for one in (pytrees.at(params, 0), task.params_shapes()))
    if theirs != ours or operator.ne(*shapes):
        raise InputError(
            f"{what} has the network {theirs}, and this run {ours}; both must have the same"
        )
    return restored


def check_number(config: ml_collections.FrozenConfigDict, found: int, key: str) -> None:
    """Refuses a run of fewer live members than are to start.

    Args:
        config: Configuration of the run that starts.
        found: Live members of the other.
        key: Key of the number that starts.
    """
    if found < config[key]:
        raise InputError(
            f"config.init_from={config.init_from!r} has {found} live members; set "
            f"config.{key}={found} or less"
        )


def _restored(given: str, what: str, instead: str) -> Any:
    try:
        work = Workdir(user_path(given, "--config.init_from"))
        return resolve("ensemble.predictor:restore")(work)
    except InputError as error:
        raise InputError(f"{what}: {error}; or {instead}") from None


def read(given: str, what: str) -> dict[str, Any]:
    """Reads the arrays [L, ...] of a file or of a run's live members, by name."""
    if is_file(given):
        path = user_path(given, "--config.init_from")
        return pytrees.at(weights.read(path, what), None)
    instead = "give an npz or a safetensors file"
    return named(_restored(given, what, instead).fitted.last_variables())


def _shapes(
    config: ml_collections.FrozenConfigDict, task: Supervised, number: int
) -> dict[str, Any]:
    """Returns the shapes of the network's arrays, by name, if it has so many outputs."""
    source = task.dataset
    own = settings("model", config)
    network = networks.create(config.model, number, own, config.dtype, source.quantiles)
    inputs = jax.ShapeDtypeStruct((1, *source.input_shape), jnp.float32)
    return named(jax.eval_shape(network.init, jax.random.key(0), inputs))
