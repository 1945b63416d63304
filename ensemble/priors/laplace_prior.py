"""Independent values with a Laplace density: `laplace(scale)`."""

import math

import jax
import jax.numpy as jnp


class Laplace:
    """Its scale is the mean absolute value."""

    setting = None

    def log_density(self, values: jax.Array, scale: float, setting: float) -> jax.Array:
        """See `PriorFamily.log_density`."""
        return -jnp.sum(jnp.abs(values)) / scale

    def sample(
        self, rng_key: jax.Array, shape: tuple[int, ...], scale: float, setting: float
    ) -> jax.Array:
        """See `PriorFamily.sample`."""
        return scale * jax.random.laplace(rng_key, shape)

    def standard_deviation(self, scale: float, setting: float) -> float:
        """See `PriorFamily.standard_deviation`."""
        return scale * math.sqrt(2)
