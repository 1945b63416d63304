"""Small convolutional networks: that of Flax's MNIST example and guide to ensembling, and LeNet-5.

https://github.com/google/flax/blob/main/examples/mnist/train.py
"""

from typing import Any, ClassVar

from flax import linen as nn
from jax import Array

from ensemble.networks.layers import ConvReluPool, conv_relu_max_pool, conv_relu_pool
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

    convolution = staticmethod(conv_relu_pool)
    kernel_size = (3, 3)
    channels = (32, 64)
    widths: ClassVar[tuple[int, ...]] = (256,)

    @nn.compact
    def __call__(self, images: Array, train: bool = False) -> Array:
        """Maps images `[N, H, W, C]`, of any H and W from 4 up, to outputs `[N, num_outputs]`."""
        units = self.packing.units
        groups = self.packing.num_groups
        dtype = self.dtype
        x = images
        for i, channels in enumerate(self.channels):
            fields = (units(channels), self.kernel_size, dtype, groups if i else 1)
            x = ConvReluPool(self.convolution, *fields, name=f"Conv_{i}")(x)
        x = flattened(x, groups)
        for i, width in enumerate(self.widths):
            x = nn.Dropout(self.dropout)(x, deterministic=not train)
            hidden = PackedDense(
                units(width), dtype=dtype, feature_group_count=groups, name=f"Dense_{i}"
            )
            x = nn.relu(hidden(x))
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        return nn.Dense(self.num_outputs, dtype=dtype, name=f"Dense_{len(self.widths)}")(x)


class LeNet5(CNN):
    """Two 5x5 convolutions, dense layers of 120 and 84; 107,786 parameters on MNIST.

    LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition",
    Proceedings of the IEEE 86 (1998), with the rectified units, 'SAME' padding and max pooling of
    https://github.com/google/uncertainty-baselines/blob/main/baselines/mnist/deterministic.py
    (whose third layer, a convolution to 120 channels, is here the paper's dense layer of 120).
    Attributes are those of `CNN`.
    """

    convolution = staticmethod(conv_relu_max_pool)
    kernel_size = (5, 5)
    channels = (6, 16)
    widths = (120, 84)
