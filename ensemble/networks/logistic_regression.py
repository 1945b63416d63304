"""Multinomial logistic regression."""

import jax
from flax import linen as nn


class LogisticRegression(nn.Module):
    """One dense layer: 7,850 parameters on MNIST.

    Attributes:
        num_classes: number of logits.
    """

    num_classes: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs `[N, ...]`, flattened, to logits `[N, num_classes]`."""
        return nn.Dense(features=self.num_classes)(inputs.reshape((inputs.shape[0], -1)))
