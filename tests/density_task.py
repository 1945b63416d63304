"""A density that a test writes, as a task for samplers: an `ensemble.task.Modelled`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.task import LogDensity, WithoutExamples


@dataclasses.dataclass(frozen=True, eq=False)
class DensityTask(WithoutExamples):
    """A log density of one vector `x` [D], whose chains start near zero.

    Attributes:
        logdensity_fn: from the vector to nats, [].
        num_dims: D.
    """

    logdensity_fn: Callable[[jax.Array], jax.Array]
    num_dims: int
    num_train_examples: int = 1
    tracked: tuple[str, ...] = ("x[0]",)

    def describe(self) -> dict[str, Any]:
        return {"name": "density", "fingerprint": f"{self.num_dims}", "num_examples": {}}

    def params_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {"x": jax.ShapeDtypeStruct((self.num_dims,), jnp.float32)}

    def own_log_density(self, mesh: Any, may_split: bool) -> LogDensity:
        return LogDensity(tuple, lambda data: lambda params: self.logdensity_fn(params["x"]))

    def starts(self, rng_keys: jax.Array, from_prior: bool) -> dict[str, jax.Array]:
        draw = jax.vmap(lambda key: jax.random.uniform(key, (self.num_dims,), minval=-2, maxval=2))
        return {"x": draw(rng_keys)}

    def check_starts(self, params: Mapping[str, np.ndarray]) -> None:
        return None

    def track(self, params: Any) -> jax.Array:
        return params["x"][:1]

    def results(self, draws: Any, first: int, live: Sequence[int]) -> Any:
        raise NotImplementedError  # Tests read draws themselves.
