"""Weights that members start from, of a file or of another run: `config.init_from`.

The head, which is every array whose shape depends on the number of outputs, is new for each member,
and so are the likelihood's own parameters. All other arrays are those of the file. Where it is an
ensemble of L members, member k starts as its live member number k mod L. Checkpoints have a digest
of what was read, so that a run does not go on from other weights.
"""

import hashlib
import logging
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import traverse_util
from jax.tree_util import tree_leaves_with_path

from ensemble import networks
from ensemble.config import settings
from ensemble.config.builtin import is_file
from ensemble.config.pieces import resolve
from ensemble.data.source import Source, check_same_data
from ensemble.errors import InputError, listed
from ensemble.network import Variables, path_name
from ensemble.runtime.algorithm import Start
from ensemble.storage import weights
from ensemble.storage.paths import user_path
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned

logger = logging.getLogger("ensemble")

Given = dict[str, Any]
"""Arrays [L, ...] by the names of a network's: paths with `/`, without `params/` in front."""


def start(config: ml_collections.FrozenConfigDict, task: Learned) -> Start:
    """Reads the weights that the members of a run start from.

    Args:
        config: of the run.
        task: what the members learn, by a network that the weights must fit.

    Returns:
        A nested dict [L, ...], with the paths of a network's variables, and a digest, which all
        members share: those that come later must start from the same.

    Raises:
        InputError: they cannot be read, or do not fit the network, or make members the same.
    """
    what = f"config.init_from={config.init_from!r}"
    found = read(config.init_from, what)
    variables = jax.eval_shape(task.init_variables, jax.random.key(0))
    shapes = _named(variables)
    body = _body(config, task.dataset, task.likelihood.num_outputs)
    head = sorted(shapes.keys() - body)
    if not body:
        raise InputError(
            f"{what}: config.model={config.model!r} is nothing but a head, which is new for each "
            "member; leave it out"
        )
    fits = weights.fitting(found, shapes, body, what, config.model)
    number = len(next(iter(fits.values())))
    # Members that see the same batches and draw no noise must not start alike.
    are_alike = config.shuffle == "shared" and not task.traits.is_random
    if are_alike and number < config.ensemble_size and _is_constant(task, head):
        raise InputError(
            f"{what}: members that start from the same weights would stay the same, for the head "
            f"of config.model={config.model!r} always starts alike; set "
            "config.shuffle='independent'"
        )
    logger.info(
        "Members start from %s: %d arrays of networks: %d. New for each member: %s.",
        config.init_from,
        len(fits),
        number,
        listed(head),
    )
    paths = {_name(path): path_name(path) for path, _ in tree_leaves_with_path(variables)}
    given = {paths[name]: array for name, array in fits.items()}
    return Start({"weights": _digest(found)}, traverse_util.unflatten_dict(given, sep="/"))


def with_given(variables: Variables, given: Variables) -> Variables:
    """Puts what is given to a member in the place of what it would have started with."""
    arrays = {path_name(path): leaf for path, leaf in tree_leaves_with_path(given)}
    return jax.tree.map_with_path(lambda path, leaf: arrays.get(path_name(path), leaf), variables)


def _digest(found: Given) -> np.ndarray:
    """A digest [2] uint32 of arrays, the same from any file."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(found):
        array = np.ascontiguousarray(found[name])
        digest.update(repr((name, array.shape, array.dtype.str)).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(digest.digest(), np.uint32)


def _name(path: Any) -> str:
    return path_name(path).removeprefix("params/")


def _named(variables: Variables) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in tree_leaves_with_path(variables)}


def run_of(config: ml_collections.FrozenConfigDict, task: Learned, instead: str) -> Any:
    """Restores the run `config.init_from`, which has learned the same data by the same network.

    Args:
        config: of the run that starts.
        task: what it learns.
        instead: what else it may start from, for the message.

    Raises:
        InputError: It is none, or has learned something else.
    """
    what = f"config.init_from={config.init_from!r}"
    restored = _restored(config.init_from, what, instead)
    check_same_data(what, restored.description["fingerprint"], task.dataset.fingerprint)
    theirs, ours = ((one["model"], settings("model", one)) for one in (restored.config, config))
    params = restored.fitted.last_variables()["params"]
    shapes = [
        jax.tree.map(lambda leaf: leaf.shape[1:], params),
        jax.tree.map(lambda leaf: leaf.shape, task.params_shapes()),
    ]
    if theirs != ours or shapes[0] != shapes[1]:
        raise InputError(
            f"{what} has the network {theirs}, and this run {ours}; both must have the same"
        )
    return restored


def check_number(config: ml_collections.FrozenConfigDict, found: int, key: str) -> None:
    """Refuses a run of fewer live members than are to start.

    Args:
        config: of the run that starts.
        found: Live members of the other.
        key: of the number that starts.
    """
    if found < config[key]:
        raise InputError(
            f"config.init_from={config.init_from!r} has {found} live members; set "
            f"config.{key}={found} or less"
        )


def _restored(given: str, what: str, instead: str) -> Any:
    try:
        return resolve("ensemble.predictor:restore")(
            Workdir(user_path(given, "--config.init_from"))
        )
    except InputError as error:
        raise InputError(f"{what}: {error}; or {instead}") from None


def read(given: str, what: str) -> Given:
    """The arrays of a file or of a run's live members, [L, ...] by name."""
    if is_file(given):
        path = user_path(given, "--config.init_from")
        return {name: array[None] for name, array in weights.read(path, what).items()}
    instead = "give an npz or a safetensors file"
    return _named(_restored(given, what, instead).fitted.last_variables())


def _body(config: ml_collections.FrozenConfigDict, dataset: Source, num_outputs: int) -> set[str]:
    """Names of the network's arrays whose shapes do not depend on how many outputs it has."""
    inputs = jax.ShapeDtypeStruct((1, *dataset.input_shape), jnp.float32)
    own = settings("model", config)
    shapes = [
        _named(
            jax.eval_shape(
                networks.create(config.model, size, own, config.dtype, dataset.quantiles).init,
                jax.random.key(0),
                inputs,
            )
        )
        for size in (num_outputs, num_outputs + 1)
    ]
    return {name for name, leaf in shapes[0].items() if shapes[1].get(name) == leaf}


def _is_constant(task: Learned, head: list[str]) -> bool:
    """Whether some arrays of a network start the same by any key."""

    @jax.jit
    def draw(rng_key: jax.Array) -> list[jax.Array]:
        variables = _named(task.init_variables(rng_key))
        return [variables[name] for name in head]  # Nothing else is computed.

    return jax.tree.all(
        jax.tree.map(jnp.array_equal, *(draw(jax.random.key(seed)) for seed in (0, 1)))
    )
