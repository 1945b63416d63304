"""Multinomial logistic regression."""

from typing import Any

import jax
from flax import linen as nn


class LogisticRegression(nn.Module):
    """One dense layer: 7,850 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs `[N, ...]`, flattened, to outputs `[N, num_outputs]`."""
        x = inputs.reshape((inputs.shape[0], -1))
        return nn.Dense(features=self.num_outputs, dtype=self.dtype)(x)
