"""A layer on sines of random combinations of the inputs."""

import flax.linen as nn
import jax.numpy as jnp


class Sines(nn.Module):
    num_outputs: int
    width: int = 64

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(self.num_outputs)(jnp.sin(nn.Dense(self.width)(inputs)))
