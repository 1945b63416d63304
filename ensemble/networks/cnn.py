"""The convolutional network of Flax's MNIST example and of its guide to ensembling.

https://github.com/google/flax/blob/main/examples/mnist/train.py
"""

from typing import Any

import jax
from flax import linen as nn

from ensemble import network_keys
from ensemble.networks.layers import ConvReluPool


class CNN(nn.Module):
    """Two convolutions with average pooling, one hidden layer; 824,458 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dropout: share of the units that are dropped in training, before each dense layer.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    dropout: float = network_keys.CNN.keys["cnn.dropout"].default
    dtype: Any = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images `[N, H, W, C]`, of any H and W from 4 up, to outputs `[N, num_outputs]`."""
        x = ConvReluPool(features=32, dtype=self.dtype, name="Conv_0")(images)
        x = ConvReluPool(features=64, dtype=self.dtype, name="Conv_1")(x)
        x = x.reshape((x.shape[0], -1))
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        x = nn.relu(nn.Dense(features=256, dtype=self.dtype)(x))
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        return nn.Dense(features=self.num_outputs, dtype=self.dtype)(x)
