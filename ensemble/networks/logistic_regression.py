"""Multinomial logistic regression."""

import jax
from flax import linen as nn


class LogisticRegression(nn.Module):
    """One dense layer: 7,850 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
    """

    num_outputs: int
    is_linear = True

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs `[N, ...]`, flattened, to outputs `[N, num_outputs]`."""
        return nn.Dense(features=self.num_outputs)(inputs.reshape((inputs.shape[0], -1)))
