"""The task of sampling a density: there is nothing to learn from, and nothing to predict."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble.config.builtin import DENSITIES
from ensemble.errors import InputError
from ensemble.random_walk.densities import Density
from ensemble.task import WithoutExamples

_NUM_POINTS = 5


@dataclasses.dataclass(frozen=True)
class DensityTask(WithoutExamples):
    """A density by its name.

    Attributes:
        name: Name or path of the density.
        density: The density itself.
    """

    name: str
    density: Density
    num_train_examples: int = 0

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what is sampled, JSON-ready.

        The fingerprint has, roughly, its values: another function is another density.
        """
        self.density.check(_NUM_POINTS)
        points = np.random.default_rng(0).normal(size=(_NUM_POINTS, self.density.num_dims))
        values = self.density.logdensity_fn(jnp.asarray(points, jnp.float32))
        fingerprint = " ".join(f"{value:.3g}" for value in np.asarray(values, np.float64))
        return {"name": self.name, "fingerprint": fingerprint, "num_examples": {}}


def create(config: ml_collections.FrozenConfigDict, data: Any) -> DensityTask:
    """Makes the task of a run.

    Raises:
        InputError: the density is unknown, or there are data.
    """
    if data is not None:
        raise InputError("data are not for config.method='rwm', which samples a density")
    return DensityTask(config.density, DENSITIES.load(config.density))
