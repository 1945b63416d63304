"""A density of one's own as a task for random walks: a ring in two dimensions."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.walks.target import DensityTask


@dataclasses.dataclass(frozen=True)
class Ring:
    """Points at a distance from the origin that is normal around the radius."""

    radius: float
    name: str = "ring"
    num_dims: int = 2
    num_train_examples: int = 0

    @property
    def sizes(self) -> Mapping[str, int]:
        return {}

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "fingerprint": f"{self.radius}", "num_examples": {}}

    def scored(self) -> None:
        return None

    @property
    def logdensity_fn(self) -> Callable[[jax.Array], jax.Array]:
        return lambda positions: -8 * (jnp.linalg.norm(positions, axis=-1) - self.radius) ** 2

    def start(self, rng_key: jax.Array, num_chains: int) -> jax.Array:
        return 2 * self.radius * jax.random.normal(rng_key, (num_chains, self.num_dims))


task: DensityTask = Ring(2.0)
