"""Independent values with heavy tails, Student's t: `student_t(scale, df=4)`."""

import math

import jax
import jax.numpy as jnp

from ensemble.priors.family import Setting


class StudentT:
    """Its scale is that of the t density; `df` are its degrees of freedom."""

    setting = Setting(
        "df", lambda value: value > 2, "must be above 2, so that there is a variance", "4"
    )

    def log_density(self, values: jax.Array, scale: float, setting: float) -> jax.Array:
        """See `PriorFamily.log_density`."""
        return -0.5 * (setting + 1) * jnp.sum(jnp.log1p(jnp.square(values / scale) / setting))

    def sample(
        self, rng_key: jax.Array, shape: tuple[int, ...], scale: float, setting: float
    ) -> jax.Array:
        """See `PriorFamily.sample`."""
        return scale * jax.random.t(rng_key, setting, shape)

    def standard_deviation(self, scale: float, setting: float) -> float:
        """See `PriorFamily.standard_deviation`."""
        return scale * math.sqrt(setting / (setting - 2))
