"""LeNet-5.

LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition",
Proceedings of the IEEE 86 (1998), with the rectified units, 'SAME' padding and max pooling of
https://github.com/google/uncertainty-baselines/blob/main/baselines/mnist/deterministic.py
(whose third layer, a convolution to 120 channels, is here the paper's dense layer of 120).
"""

from typing import Any

import jax
from flax import linen as nn

from ensemble.networks.layers import ConvReluMaxPool
from ensemble.networks.packed import PLAIN, PackedDense, Packing, flattened


class LeNet5(nn.Module):
    """Two 5x5 convolutions, dense layers of 120 and 84; 107,786 parameters on MNIST.

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
        """Maps images `[N, H, W, C]` of any size to outputs `[N, num_outputs]`."""
        units = self.packing.units
        groups = self.packing.num_groups
        dtype = self.dtype
        x = ConvReluMaxPool(units(6), (5, 5), dtype, name="Conv_0")(images)
        x = ConvReluMaxPool(units(16), (5, 5), dtype, groups, name="Conv_1")(x)
        x = flattened(x, groups)
        for i, width in enumerate((120, 84)):
            x = nn.Dropout(self.dropout)(x, deterministic=not train)
            x = nn.relu(
                PackedDense(
                    units(width), dtype=dtype, feature_group_count=groups, name=f"Dense_{i}"
                )(x)
            )
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        return nn.Dense(features=self.num_outputs, dtype=dtype, name="Dense_2")(x)
