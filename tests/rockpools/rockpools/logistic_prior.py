"""Independent values with a logistic density, whose tails are heavier than the normal one's."""

import math

import jax
import jax.numpy as jnp


class Logistic:
    setting = None

    def log_density(self, values, scale, setting):
        z = jnp.abs(values) / scale
        return -jnp.sum(z + 2 * jnp.log1p(jnp.exp(-z)))

    def sample(self, rng_key, shape, scale, setting):
        return scale * jax.random.logistic(rng_key, shape)

    def standard_deviation(self, scale, setting):
        return scale * math.pi / math.sqrt(3)
