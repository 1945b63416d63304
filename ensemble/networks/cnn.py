"""The convolutional network of Flax's MNIST example and of its guide to ensembling.

https://github.com/google/flax/blob/main/examples/mnist/train.py
"""

from typing import Any

import jax
from flax import linen as nn

from ensemble.networks.layers import ConvReluPool
from ensemble.networks.packed import PLAIN, PackedDense, Packing, flattened


class CNN(nn.Module):
    """Two convolutions with average pooling, one hidden layer; 824,458 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dropout: share of the units that are dropped in training, before each dense layer.
        dtype: computed in; None: float32. Parameters are float32.
        packing: of an estimator of a packed ensemble.
    """

    num_outputs: int
    dropout: float = 0.0
    dtype: Any = None
    packing: Packing = PLAIN

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images `[N, H, W, C]`, of any H and W from 4 up, to outputs `[N, num_outputs]`."""
        units = self.packing.units
        groups = self.packing.num_groups
        dtype = self.dtype
        x = ConvReluPool(units(32), dtype, name="Conv_0")(images)
        x = ConvReluPool(units(64), dtype, groups, name="Conv_1")(x)
        x = flattened(x, groups)
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        hidden = PackedDense(units(256), dtype=dtype, feature_group_count=groups, name="Dense_0")
        x = nn.relu(hidden(x))
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        return nn.Dense(features=self.num_outputs, dtype=dtype, name="Dense_1")(x)
