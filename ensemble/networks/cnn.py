"""The convolutional network of Flax's MNIST example and of its guide to ensembling.

https://github.com/google/flax/blob/main/examples/mnist/train.py
"""

import jax
from flax import linen as nn

from ensemble.networks.layers import ConvReluPool


class CNN(nn.Module):
    """Two convolutions with average pooling, one hidden layer; 824,458 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
    """

    num_outputs: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images `[N, H, W, C]`, of any H and W from 4 up, to outputs `[N, num_outputs]`."""
        x = ConvReluPool(features=32, name="Conv_0")(images)
        x = ConvReluPool(features=64, name="Conv_1")(x)
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=256)(x))
        return nn.Dense(features=self.num_outputs)(x)
