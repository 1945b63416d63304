"""Weights that members start from, of a file or of another run: `config.init_from`.

The head, which is every array whose shape depends on the number of outputs, is new for each member,
and so are the likelihood's own parameters. All other arrays are those of the file. Where it is an
ensemble of L members, member k starts as its live member number k mod L. Checkpoints have a digest
of what was read, so that a run does not go on from other weights.
"""

from collections.abc import Collection
from hashlib import blake2b

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from etils import epath
from jax import random

from ensemble import networks, pytrees
from ensemble.config import Config, settings
from ensemble.config.builtin import is_file
from ensemble.data.source import check_same_data
from ensemble.errors import InputError, in_one_line, listed, logger
from ensemble.fitted import LINEAR, OWN, WIDTH
from ensemble.network import Variables, path_name
from ensemble.pytrees import ByName
from ensemble.runtime.algorithm import WEIGHTS, Start
from ensemble.runtime.loading import Saved, restore
from ensemble.sharding.mesh import compiled_soon
from ensemble.storage.files import user_path
from ensemble.storage.memory import memory_bytes
from ensemble.storage.npz import Arrays, read_arrays
from ensemble.storage.workdir import Workdir
from ensemble.tasks.supervised import Supervised


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
    shapes = named(jax.eval_shape(task.init_variables, random.key(0)))
    keys = settings("model", config), config.dtype, source.quantiles
    wide = networks.create(model, task.likelihood.num_outputs + 1, *keys)
    inputs = jax.ShapeDtypeStruct((1, *source.input_shape), jnp.float32)
    others = named(jax.eval_shape(wide.init, random.key(0), inputs))
    body = [name for name in others if name in shapes and shapes[name].shape == others[name].shape]
    if not body:
        raise InputError(f"{what}: config.model={model!r} is but a head; leave it out")
    fits = fitting(read(config.init_from, what), shapes, body, what, model)
    head = sorted(shapes.keys() - fits.keys())
    # Members that see the same batches and draw no noise must not start alike.
    are_alike = config.shuffle == "shared" and not task.traits.is_random
    if are_alike and len(fits[body[0]]) < config.ensemble_size:
        draw = compiled_soon(lambda key: [named(task.init_variables(key))[name] for name in head])
        heads = [draw(random.key(seed)) for seed in (0, 1)]
        if jax.tree.all(jax.tree.map(jnp.array_equal, *heads)):
            raise InputError(
                f"{what}: members that start from the same weights would stay the same, for the "
                f"head of config.model={model!r} always starts alike; set "
                "config.shuffle='independent'"
            )
    logger.info("Members start from %s. New for each of them: %s.", config.init_from, listed(head))
    digest = blake2b(digest_size=8)
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
        return pytrees.at(read_weights(user_path(given, "--config.init_from"), what), None)
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


def fitting(
    found: Arrays,
    shapes: ByName,
    names: Collection[str],
    what: str,
    model: str,
) -> Arrays:
    """Takes arrays for leaves of a network, in their types.

    Args:
        found: [L, ...] by name.
        shapes: of the leaves, with their dtypes, by name.
        names: of those that are asked for.
        what: where the arrays are from, for messages.
        model: name of the network, for messages.

    Raises:
        InputError: some are missing, of another shape, or not finite.
    """
    faults = []
    for name in sorted(names):
        here = list(shapes[name].shape)
        there = list(found[name].shape[1:]) if name in found else "missing"
        if there != here:
            faults.append(f"{name} is {there} there and {here} here")
        elif not np.isfinite(found[name].astype(shapes[name].dtype)).all():
            faults.append(f"{name} has NaN or infinities")
    if faults:
        raise InputError(
            f"{what} does not fit config.model={model!r}: {listed(faults, separator='; ')}; give "
            "weights of this network, for inputs of this shape, by its names"
        )
    return {name: found[name].astype(shapes[name].dtype) for name in sorted(names)}


def read_weights(path: epath.Path, what: str) -> Arrays:
    """Reads the arrays of a file of anybody, by the paths of a network's parameters: with `/`.

    Args:
        path: Path that ends in `.npz` or `.safetensors`.
        what: Where the path was given, for messages.

    Raises:
        InputError: There is no such file, or it has other than numbers, or more than memory holds.
    """
    limit = memory_bytes() // 4  # Its arrays are copied.
    try:
        with path.open("rb") as file:
            is_npz = path.suffix == ".npz"
            arrays = read_arrays(file, limit) if is_npz else _read_safetensors(file.read(limit))
        for name, array in arrays.items():
            if array.dtype.kind in "USc":
                raise ValueError(f"{name} has dtype {array.dtype}, not real numbers")
    except Exception as error:  # A file of anybody may be damaged in any way.
        raise InputError(
            f"{what} cannot be read as weights: {in_one_line(error, 200)}; give an npz or a "
            "safetensors file of arrays by name"
        ) from None
    return {name.replace(".", "/").removeprefix("params/"): one for name, one in arrays.items()}


def _read_safetensors(content: bytes) -> Arrays:
    import safetensors  # Few runs have such a file.

    return {
        name: np.frombuffer(one["data"], _dtype(one["dtype"])).reshape(one["shape"])
        for name, one in safetensors.deserialize(content)
    }


def _dtype(name: str):
    """The type of arrays by its name in safetensors files, such as `F32` and `BOOL`."""
    special = {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}
    return special.get(name) or np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}")
