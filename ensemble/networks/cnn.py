"""The convolutional network of Flax's MNIST example and of its guide to ensembling.

https://github.com/google/flax/blob/main/examples/mnist/train.py
"""

from typing import Any

import jax
from flax import linen as nn

from ensemble.networks.layers import ConvReluPool


class CNN(nn.Module):
    """Two convolutions with average pooling, one hidden layer; 824,458 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    dtype: Any = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images `[N, H, W, C]`, of any H and W from 4 up, to outputs `[N, num_outputs]`."""
        x = ConvReluPool(features=32, dtype=self.dtype, name="Conv_0")(images)
        x = ConvReluPool(features=64, dtype=self.dtype, name="Conv_1")(x)
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=256, dtype=self.dtype)(x))
        return nn.Dense(features=self.num_outputs, dtype=self.dtype)(x)
