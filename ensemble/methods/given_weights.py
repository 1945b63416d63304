"""Weights that members start from, of a file or of another run: `config.init_from`.

The head, which is every array whose shape depends on the number of outputs, is new for each member,
and so are the likelihood's own parameters. All other arrays are those of the file. Where it is an
ensemble of L members, member k starts as its live member number k mod L. Checkpoints have a digest
of what was read, so that a run does not go on from other weights.
"""

import hashlib
import logging

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import networks, pytrees
from ensemble.config import Config, settings
from ensemble.config.builtin import is_file
from ensemble.data.source import check_same_data
from ensemble.errors import InputError, listed
from ensemble.fitted import LINEAR, OWN, WIDTH
from ensemble.network import Variables, path_name
from ensemble.runtime.algorithm import WEIGHTS, Start
from ensemble.runtime.loading import Saved, restore
from ensemble.storage import weights
from ensemble.storage.paths import user_path
from ensemble.storage.workdir import Workdir
from ensemble.tasks.supervised import Supervised

logger = logging.getLogger("ensemble")


def start(config: Config, task: Supervised) -> Start:
    """Reads the weights that the members of a run start from.

    Args:
        config: Configuration of the run.
        task: Task of the members, by a network that the weights must fit.

    Returns:
        Arrays [L, ...] by the names of a network's variables, and a digest, which all members
        share: those that come later must start from the same.

    Raises:
        InputError: They cannot be read, do not fit the network, or make members the same.
    """
    what, model, source = f"config.init_from={config.init_from!r}", config.model, task.dataset
    shapes = named(jax.eval_shape(task.init_variables, jax.random.key(0)))
    keys = settings("model", config), config.dtype, source.quantiles
    wide = networks.create(model, task.likelihood.num_outputs + 1, *keys)
    inputs = jax.ShapeDtypeStruct((1, *source.input_shape), jnp.float32)
    others = named(jax.eval_shape(wide.init, jax.random.key(0), inputs))
    body = [name for name in others if name in shapes and shapes[name].shape == others[name].shape]
    if not body:
        raise InputError(f"{what}: config.model={model!r} is but a head; leave it out")
    fits = weights.fitting(read(config.init_from, what), shapes, body, what, model)
    head = sorted(shapes.keys() - fits.keys())
    # Members that see the same batches and draw no noise must not start alike.
    are_alike = config.shuffle == "shared" and not task.traits.is_random
    if are_alike and len(fits[body[0]]) < config.ensemble_size:
        draw = jax.jit(lambda key: [named(task.init_variables(key))[name] for name in head])
        heads = [draw(jax.random.key(seed)) for seed in (0, 1)]
        if jax.tree.all(jax.tree.map(jnp.array_equal, *heads)):
            raise InputError(
                f"{what}: members that start from the same weights would stay the same, for the "
                f"head of config.model={model!r} always starts alike; set "
                "config.shuffle='independent'"
            )
    logger.info("Members start from %s. New for each of them: %s.", config.init_from, listed(head))
    digest = hashlib.blake2b(digest_size=8)
    for array in fits.values():
        digest.update(array.tobytes())
    return Start({WEIGHTS: np.frombuffer(digest.digest(), np.uint32)}, fits)


def with_given(variables: Variables, given) -> Variables:
    """Puts what is given to a member in the place of what it would have started with."""
    arrays = named(given)
    return jax.tree.map_with_path(lambda path, leaf: arrays.get(_name(path), leaf), variables)


def named(tree) -> Variables:
    """Returns the leaves of variables, or of parameters, by name: without `params/` in front."""
    return {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def _name(path) -> str:
    return path_name(path).removeprefix("params/")


def read(given: str, what: str) -> Variables:
    """Reads the arrays [L, ...] of a file, or of a run's live members: of a chain its newest draw.

    Raises:
        InputError: They cannot be read, or members have a linear part beside their networks.
    """
    if is_file(given):
        return pytrees.at(weights.read(user_path(given, "--config.init_from"), what), None)
    fitted = _restored(given).fitted
    last = np.flatnonzero(np.diff(fitted.member_of, append=fitted.num_members))
    found = pytrees.at(fitted.sets, last)
    if any(map(np.any, jax.tree.leaves(found.get(LINEAR)))):
        raise InputError(
            f"{what}: its members add a linear model to what their networks say, and other methods "
            "begin with networks: train them with config.method='deep_ensemble'"
        )
    return named(pytrees.without(found, OWN, LINEAR, WIDTH))


def run_of(config: Config, task: Supervised) -> Saved:
    """Restores the run `config.init_from`, which has learned the same data by the same network.

    Raises:
        InputError: It is none, or has learned something else.
    """
    what = f"config.init_from={config.init_from!r}"
    restored = _restored(config.init_from)
    check_same_data(what, restored.description["fingerprint"], task.dataset.fingerprint)
    theirs, ours = ((one["model"], settings("model", one)) for one in (restored.config, config))
    if theirs != ours:
        raise InputError(f"{what} has the network {theirs}, and this run {ours}; use the same")
    return restored


def _restored(given: str) -> Saved:
    return restore(Workdir(user_path(given, "--config.init_from")))


def check_number(config: Config, found: int, key: str) -> None:
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
