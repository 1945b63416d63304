"""Weights that members start from, of a file or of another run: `config.init_from`.

The head, which is every array whose shape depends on the number of outputs, is new for each member,
and so are the likelihood's own parameters. All other arrays are those of the file. Where it is an
ensemble of L members, member k starts as its live member number k mod L. Checkpoints have a digest
of what was read, so that a run does not go on from other weights.
"""

import hashlib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import traverse_util
from jax.tree_util import tree_leaves_with_path

from ensemble import networks, registry
from ensemble.config import model_settings
from ensemble.errors import UserError
from ensemble.methods.common_keys import is_file
from ensemble.network import Variables, path_name
from ensemble.sharding import processes
from ensemble.source import Source
from ensemble.storage import weights
from ensemble.storage.paths import user_path
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned

logger = logging.getLogger("ensemble")

Given = dict[str, Any]
"""Arrays [L, ...] by the names of a network's: paths with `/`, without `params/` in front."""

WEIGHTS = "pretrained"
"""What a checkpoint's counters call the digest of the weights that the members started from; the
key had this name once."""


class Weights:
    """The weights that the members of a run start from.

    Args:
        config: of the run.
        counters: of a checkpoint of members that have started from them; empty: nobody has.
    """

    def __init__(self, config: ml_collections.FrozenConfigDict, counters: Mapping[str, int]):
        self._config = config
        self._what = f"config.init_from={config.init_from!r}"
        self.digest = counters.get(WEIGHTS)

    @property
    def counters(self) -> dict[str, int]:
        """What a checkpoint says of them."""
        return {} if self.digest is None else {WEIGHTS: self.digest}

    def read(self, task: Learned) -> dict[str, Any]:
        """Reads them as what `Engine.init` is given.

        Args:
            task: what the members learn, by a network that the weights must fit.

        Returns:
            A nested dict [L, ...], with the paths of a network's variables.

        Raises:
            UserError: they cannot be read, or do not fit the network, or make members the same,
                or are not those that other members have started from.
        """
        found = _read(self._config.init_from, self._what)
        digest = _digest(found)
        if self.digest not in (None, digest):
            raise UserError(
                f"{self._what} has other weights than the run's first members have started from; "
                "put those back, or choose another --workdir"
            )
        self.digest = digest
        given = _fitting(found, self._config, task)
        return traverse_util.unflatten_dict(given, sep="/")

    def check(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses to go on if the weights are there and have changed.

        Raises:
            UserError: as said.
        """
        config, then = self._config, counters.get(WEIGHTS)

        def now() -> int | None:
            path = user_path(config.init_from, "--config.init_from")
            return _digest(_read(config.init_from, self._what)) if path.exists() else then

        if then is not None and processes.from_main(now) != then:
            raise UserError(
                f"{where} holds a run that started from other weights than {self._what} has now; "
                "put those back, or choose another --workdir"
            )


def _fitting(found: Given, config: ml_collections.FrozenConfigDict, task: Learned) -> Given:
    """Takes the arrays of the network's body, in its types, by its paths.

    Raises:
        UserError: they do not fit the network, or make members the same.
    """
    what = f"config.init_from={config.init_from!r}"
    variables = jax.eval_shape(task.init_variables, jax.random.key(0))
    shapes = _named(variables)
    body = _body(config, task.dataset, task.likelihood.num_outputs)
    head = sorted(shapes.keys() - body)
    if not body:
        raise UserError(
            f"{what}: config.model={config.model!r} is nothing but a head, which is new for each "
            "member; leave it out"
        )
    fits = weights.fitting(found, shapes, body, what, config.model)
    if config.batching == "shared" and not task.traits.is_random:
        _check_members_differ(config, fits, task.init_variables, head)
    num_networks = len(next(iter(fits.values())))
    logger.info(
        "Members start from %s: %d arrays, of %d network%s. New for each member: %s.",
        config.init_from,
        len(fits),
        num_networks,
        "s" * (num_networks > 1),
        weights.listed(head),
    )
    paths = {_name(path): path_name(path) for path, _ in tree_leaves_with_path(variables)}
    return {paths[name]: array for name, array in fits.items()}


def _digest(found: Given) -> int:
    """A digest of arrays, the same from any file: 48 bits, which JSON holds."""
    digest = hashlib.blake2b(digest_size=6)
    for name in sorted(found):
        array = np.ascontiguousarray(found[name])
        digest.update(repr((name, array.shape, array.dtype.str)).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "little")


def _name(path: Any) -> str:
    return path_name(path).removeprefix("params/")


def _named(variables: Variables) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in tree_leaves_with_path(variables)}


def _read(given: str, what: str) -> Given:
    """The arrays of a file or of a run's live members, [L, ...] by name."""
    path = user_path(given, "--config.init_from")
    if is_file(given):
        return {name: array[None] for name, array in weights.read(path, what).items()}
    try:
        restored = registry.load(registry.RESTORE)(Workdir(path))
    except UserError as error:
        raise UserError(f"{what}: {error}; or give an npz or a safetensors file") from None
    return _named(restored.fitted.last_variables())


def _body(config: ml_collections.FrozenConfigDict, dataset: Source, num_outputs: int) -> set[str]:
    """Names of the network's arrays whose shapes do not depend on how many outputs it has."""
    inputs = jax.ShapeDtypeStruct((1, *dataset.input_shape), jnp.float32)
    settings = model_settings(config)
    shapes = [
        _named(
            jax.eval_shape(
                networks.create(config.model, size, settings, config.dtype, dataset.quantiles).init,
                jax.random.key(0),
                inputs,
            )
        )
        for size in (num_outputs, num_outputs + 1)
    ]
    return {name for name, leaf in shapes[0].items() if shapes[1].get(name) == leaf}


def _check_members_differ(
    config: ml_collections.FrozenConfigDict,
    fits: Given,
    init: Callable[[jax.Array], Variables],
    head: list[str],
) -> None:
    """Refuses members that start alike, where they see the same batches and draw no noise.

    Raises:
        UserError: as said.
    """
    of_members = [
        _digest({name: leaf[k % len(leaf)] for name, leaf in fits.items()})
        for k in range(min(config.ensemble_size, len(next(iter(fits.values())))))
    ]
    numbers = range(config.ensemble_size)
    pairs = itertools.combinations(numbers, 2)
    size = len(of_members)
    alike = next((two for two in pairs if len({of_members[k % size] for k in two}) == 1), None)
    if alike is None:
        return

    @jax.jit
    def draw(rng_key: jax.Array) -> list[jax.Array]:
        variables = _named(init(rng_key))
        return [variables[name] for name in head]  # Nothing else is computed.

    first, second = (draw(jax.random.key(seed)) for seed in (0, 1))
    if jax.tree.all(jax.tree.map(jnp.array_equal, first, second)):
        raise UserError(
            f"config.init_from={config.init_from!r}: members {alike[0]} and {alike[1]}, which "
            "start from the same weights, would stay the same, for the head of "
            f"config.model={config.model!r} always starts alike; set config.batching='independent'"
        )
