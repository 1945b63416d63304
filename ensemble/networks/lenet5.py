"""LeNet-5.

LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition",
Proceedings of the IEEE 86 (1998), with the rectified units, 'SAME' padding and max pooling of
https://github.com/google/uncertainty-baselines/blob/main/baselines/mnist/deterministic.py
(whose third layer, a convolution to 120 channels, is here the paper's dense layer of 120).
"""

from typing import Any

import jax
from flax import linen as nn

from ensemble.networks.layers import Conv


class LeNet5(nn.Module):
    """Two 5x5 convolutions, dense layers of 120 and 84; 107,786 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    dtype: Any = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images `[N, H, W, C]` of any size to outputs `[N, num_outputs]`."""
        x = nn.relu(Conv(features=6, kernel_size=(5, 5), dtype=self.dtype)(images))
        x = nn.max_pool(x, window_shape=(2, 2), strides=(2, 2), padding="SAME")
        x = nn.relu(Conv(features=16, kernel_size=(5, 5), dtype=self.dtype)(x))
        x = nn.max_pool(x, window_shape=(2, 2), strides=(2, 2), padding="SAME")
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=120, dtype=self.dtype)(x))
        x = nn.relu(nn.Dense(features=84, dtype=self.dtype)(x))
        return nn.Dense(features=self.num_outputs, dtype=self.dtype)(x)
