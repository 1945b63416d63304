"""Independent normal values: `normal(sd)`."""

import jax
import jax.numpy as jnp


class Normal:
    """Its scale is the standard deviation."""

    setting = None

    def log_density(self, values: jax.Array, scale: float, setting: float) -> jax.Array:
        """See `PriorFamily.log_density`."""
        return -0.5 * jnp.sum(jnp.square(values / scale))

    def sample(
        self, rng_key: jax.Array, shape: tuple[int, ...], scale: float, setting: float
    ) -> jax.Array:
        """See `PriorFamily.sample`."""
        return scale * jax.random.normal(rng_key, shape)

    def standard_deviation(self, scale: float, setting: float) -> float:
        """See `PriorFamily.standard_deviation`."""
        return scale
