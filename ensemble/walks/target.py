"""The task of sampling a density: there is nothing to learn from, and nothing to predict."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble.config.pieces import DENSITIES
from ensemble.errors import InputError
from ensemble.task import Task, WithoutExamples
from ensemble.walks import densities
from ensemble.walks.densities import Density, check_density

_NUM_POINTS = 5


class TargetDensity(Protocol):
    """What a sampler without gradients asks of a density."""

    @property
    def num_dims(self) -> int:
        """D, coordinates of a position."""

    @property
    def logdensity_fn(self) -> Callable[[jax.Array], jax.Array]:
        """From positions [C, D] to [C] nats, up to a constant; -inf says impossible."""

    def start(self, rng_key: jax.Array, num_chains: int) -> jax.Array:
        """Draws overdispersed starts [C, D]."""


class DensityTask(Task, TargetDensity, Protocol):
    """A density that is sampled as it is."""

    @property
    def name(self) -> str:
        """The name of the density."""


@dataclasses.dataclass(frozen=True)
class Target(WithoutExamples):
    """A density by its name.

    Attributes:
        name: or path.
        density: of that name.
    """

    name: str
    density: Density
    num_train_examples: int = 0

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what is sampled, JSON-ready."""
        return {"name": self.name, "fingerprint": self._fingerprint, "num_examples": {}}

    @property
    def num_dims(self) -> int:
        """D, coordinates of a position."""
        return self.density.num_dims

    @property
    def logdensity_fn(self) -> densities.LogDensityFn:
        """From positions [C, D] to [C] nats, up to a constant."""
        return self.density.logdensity_fn

    def start(self, rng_key: jax.Array, num_chains: int) -> jax.Array:
        """Draws overdispersed starts [C, D]."""
        return self.density.start(rng_key, num_chains)

    @functools.cached_property
    def _fingerprint(self) -> str:
        """Its dimensions and, roughly, its values: another function is another density."""
        check_density(self.density.logdensity_fn, _NUM_POINTS, self.density.num_dims)
        shape = _NUM_POINTS, self.density.num_dims
        points = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        values = np.asarray(self.density.logdensity_fn(jnp.asarray(points)), np.float64)
        return f"{self.density.num_dims}: {' '.join(f'{value:.3g}' for value in values)}"


def create(config: ml_collections.FrozenConfigDict, data: Any) -> Target:
    """Makes the task of a run.

    Raises:
        InputError: the density is unknown, or there are data.
    """
    if data is not None:
        raise InputError(
            f"data are not for config.method={config.method!r}, which samples a density"
        )
    return Target(config.density, DENSITIES.load(config.density))
