"""Weights that members start from, of a file or of another run: `config.pretrained`.

The head, which is every array whose shape depends on the number of outputs, is new for each member,
and so are the likelihood's own parameters. All other arrays are those of the file. Where it is an
ensemble of L members, member k starts as its live member number k mod L.
"""

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import networks, registry
from ensemble.config import model_settings
from ensemble.errors import UserError, in_one_line
from ensemble.network import Variables
from ensemble.notes import note
from ensemble.storage.paths import user_path
from ensemble.storage.weights import read_weights
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")

Given = dict[str, Any]
"""Arrays [L, ...] by the names of a network's: paths with `/`, without `params/` in front."""

_MAX_NAMED = 6


def load(
    config: ml_collections.FrozenConfigDict,
    init: Callable[[jax.Array], Variables],
    input_shape: tuple[int, ...],
    num_outputs: int,
    is_random: bool,
) -> Given:
    """Reads what the members start from; nothing where that is not set.

    Args:
        config: of the run.
        init: how one member would start, from its key.
        input_shape: of one example.
        num_outputs: of the network.
        is_random: whether the network draws noise in training.

    Raises:
        UserError: it cannot be read, or does not fit the network, or makes all members the same.
    """
    if not config.pretrained:
        return {}
    what = f"config.pretrained={config.pretrained!r}"
    shapes = _named(jax.eval_shape(init, jax.random.key(0)))
    body = _body(config, input_shape, num_outputs)
    head = sorted(shapes.keys() - body)
    if not body:
        raise UserError(
            f"{what}: config.model={config.model!r} is nothing but a head, which is new for each "
            "member; leave it out"
        )
    if config.ensemble_size > 1 and config.batching == "shared" and not is_random:
        _check_heads_differ(config.model, init, head, what)
    found = _read(config.pretrained, what)
    fits, faults = {}, []
    for name in sorted(body):
        if name not in found:
            faults.append(f"{name} {list(shapes[name].shape)} is missing there")
        elif found[name].shape[1:] != shapes[name].shape:
            sizes = [list(one) for one in (found[name].shape[1:], shapes[name].shape)]
            faults.append(f"{name} is {sizes[0]} there and {sizes[1]} here")
        else:
            fits[name] = found[name].astype(shapes[name].dtype)
            if not np.isfinite(fits[name]).all():
                faults.append(f"{name} has NaN or infinities")
    others = sorted(in_one_line(name, 80) for name in found.keys() - shapes.keys())
    if faults:
        there = f" (it also has {_listed(others)})" if others else ""
        raise UserError(
            f"{what} does not fit config.model={config.model!r}: {_listed(faults, '; ')}{there}; "
            "give weights of this network, for inputs of this shape, by its names"
        )
    if others:
        note(f"{what} has arrays that config.model={config.model!r} lacks: {_listed(others)}.")
    logger.info(
        "Members start from %s: %d arrays, of %d network%s. New for each member: %s.",
        config.pretrained,
        len(fits),
        len(next(iter(fits.values()))),
        "s" * (len(next(iter(fits.values()))) > 1),
        _listed(head),
    )
    return fits


def start(variables: Variables, given: Given, number: jax.Array) -> Variables:
    """Puts what is given in the place of what member `number` would have started with."""
    if not given:
        return variables

    def one(path: Any, leaf: jax.Array) -> jax.Array:
        arrays = given.get(_name(path))
        return leaf if arrays is None else arrays[number % len(arrays)]

    return jax.tree.map_with_path(one, variables)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/")


def _named(variables: Variables) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables)}


def _read(given: str, what: str) -> Given:
    """The arrays of a file or of a run's live members, [L, ...] by name."""
    path = user_path(given, "--config.pretrained")
    if path.suffix in (".npz", ".safetensors"):
        if not path.exists():
            raise UserError(f"{what}: there is no such file; give the path of one")
        arrays = read_weights(path)
        named = {
            name.replace(".", "/").removeprefix("params/"): array[None]
            for name, array in arrays.items()
        }
        if len(named) < len(arrays):
            raise UserError(f"{what} has two arrays of one name, such as a.b and a/b; rename one")
        return named
    try:
        restored = registry.load(registry.RESTORE)(Workdir(path))
    except UserError as error:
        raise UserError(f"{what}: {error}; or give an npz or a safetensors file") from None
    last = restored.num_draws
    return {name: leaf[last - 1 :: last] for name, leaf in _named(restored.variables).items()}


def _body(
    config: ml_collections.FrozenConfigDict, input_shape: tuple[int, ...], num_outputs: int
) -> set[str]:
    """Names of the network's arrays whose shapes do not depend on how many outputs it has."""
    inputs = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
    settings = model_settings(config)
    shapes = [
        _named(
            jax.eval_shape(
                networks.create(config.model, size, settings, config.dtype).init,
                jax.random.key(0),
                inputs,
            )
        )
        for size in (num_outputs, num_outputs + 1)
    ]
    return {name for name, leaf in shapes[0].items() if shapes[1].get(name) == leaf}


def _check_heads_differ(
    model: str, init: Callable[[jax.Array], Variables], head: list[str], what: str
) -> None:
    """Refuses members that start alike, where they see the same batches and draw no noise.

    Raises:
        UserError: as said.
    """

    @jax.jit
    def draw(rng_key: jax.Array) -> list[jax.Array]:
        variables = _named(init(rng_key))
        return [variables[name] for name in head]  # Nothing else is computed.

    first, second = (draw(jax.random.key(seed)) for seed in (0, 1))
    if jax.tree.all(jax.tree.map(jnp.array_equal, first, second)):
        raise UserError(
            f"{what}: members that start from the same weights would stay the same, for the head "
            f"of config.model={model!r} always starts alike; set config.batching='independent'"
        )


def _listed(texts: list[str], separator: str = ", ") -> str:
    """The first few, and how many more."""
    more = len(texts) - _MAX_NAMED
    return separator.join(texts[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
