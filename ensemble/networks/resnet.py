"""Residual networks: of 20 layers for small images, and of 50 for photographs.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2015), arXiv:1512.03385.

The small one (section 4.2) has three stages of three blocks, shortcuts without parameters (their
option A), and group in place of batch normalisation (Wu and He, "Group normalization", 2018): a
member's output then depends on no other example and it keeps no batch statistics, so that members
and draws are plain parameter trees.

The large one has strides in the 3x3 convolutions, and layers, padding and names of
https://github.com/pytorch/vision/blob/main/torchvision/models/resnet.py, so that its weights need
to be transposed only.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from ensemble.networks.packed import PLAIN, PackedConv, Packing

_Conv3x3 = partial(
    PackedConv, kernel_size=(3, 3), use_bias=False, kernel_init=nn.initializers.he_normal()
)


def _norm(features: int, width: int, dtype) -> nn.GroupNorm:
    """Normalises groups of as many channels as eighths of `width` have, or a few more."""
    groups = range(max(8 * features // width, 1), 0, -1)
    return nn.GroupNorm(next(n for n in groups if features % n == 0), dtype=dtype)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut.

    Attributes:
        features: channels put out by the whole network, at least as many as come in.
        stride: 2 halves height and width (rounded up), 1 keeps them.
        dropout: share of the units that are dropped in training, between the convolutions.
        dtype: computed in.
        packing: of an estimator of a packed ensemble.
    """

    features: int
    stride: int
    dropout: float
    dtype: Any
    packing: Packing

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps `[N, H, W, C]` to `[N, ceil(H / stride), ceil(W / stride), units]`."""
        features = self.packing.units(self.features)
        groups = self.packing.num_groups
        conv = partial(_Conv3x3, features, feature_group_count=groups, dtype=self.dtype)
        shortcut = x[:, :: self.stride, :: self.stride, :]
        shortcut = jnp.pad(shortcut, [(0, 0)] * 3 + [(0, features - x.shape[-1])])
        x = conv(strides=self.stride, name="Conv_0")(x)
        x = nn.relu(_norm(features, self.features, self.dtype)(x))
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        x = conv(name="Conv_1")(x)
        return nn.relu(_norm(features, self.features, self.dtype)(x) + shortcut)


class ResNet20(nn.Module):
    """Stages of 16, 32 and 64 channels, three blocks each; 269,722 parameters on CIFAR-10.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dropout: share of the units that are dropped in training, within each block.
        dtype: computed in; None: float32. Parameters are float32.
        packing: of an estimator of a packed ensemble.
    """

    num_outputs: int
    dropout: float = 0.0
    dtype: Any = None
    packing: Packing = PLAIN

    @nn.compact
    def __call__(self, images: Array, train: bool = False) -> Array:
        """Maps images `[N, H, W, C]` of any size to outputs `[N, num_outputs]`."""
        features = self.packing.units(16)
        x = _Conv3x3(features, dtype=self.dtype, name="Conv_0")(images)
        x = nn.relu(_norm(features, 16, self.dtype)(x))
        for features, stride in ((16, 1), (32, 2), (64, 2)):
            for strides in (stride, 1, 1):
                fields = (strides, self.dropout, self.dtype, self.packing)
                x = ResidualBlock(features, *fields)(x, train)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_outputs, dtype=self.dtype)(x)


_Conv = partial(
    nn.Conv,
    use_bias=False,
    kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"),
)
_Norm = partial(nn.BatchNorm, momentum=0.9, epsilon=1e-5)


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 around a shortcut.

    Attributes:
        features: channels in the middle; four times as many are put out.
        stride: 2 halves height and width, 1 keeps them.
        dtype: computed in.
    """

    features: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps `[N, H, W, C]` to `[N, ceil(H / stride), ceil(W / stride), 4 * features]`."""
        norm = partial(_Norm, use_running_average=not train, dtype=self.dtype)
        conv = partial(_Conv, dtype=self.dtype)
        shortcut = x
        stride = (self.stride, self.stride)
        x = nn.relu(norm(name="bn1")(conv(self.features, (1, 1), name="conv1")(x)))
        x = conv(self.features, (3, 3), stride, padding=1, name="conv2")(x)
        x = nn.relu(norm(name="bn2")(x))
        x = norm(name="bn3")(conv(4 * self.features, (1, 1), name="conv3")(x))
        if shortcut.shape != x.shape:
            shortcut = conv(4 * self.features, (1, 1), stride, name="downsample_0")(shortcut)
            shortcut = norm(name="downsample_1")(shortcut)
        return nn.relu(x + shortcut)


class ResNet50(nn.Module):
    """Stages of 3, 4, 6 and 3 blocks; 25,557,032 parameters on ImageNet.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dtype: computed in; None: float32. Parameters and batch statistics are float32.
    """

    num_outputs: int
    dtype: Any = None

    @nn.compact
    def __call__(self, images: Array, train: bool = False) -> Array:
        """Maps images `[N, H, W, C]` of any size to outputs `[N, num_outputs]`."""
        x = _Conv(64, (7, 7), (2, 2), padding=3, dtype=self.dtype, name="conv1")(images)
        x = _Norm(use_running_average=not train, dtype=self.dtype, name="bn1")(x)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for stage, num_blocks in enumerate((3, 4, 6, 3)):
            for i in range(num_blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                name = f"layer{stage + 1}_{i}"
                x = Bottleneck(64 * 2**stage, stride, self.dtype, name=name)(x, train)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_outputs, dtype=self.dtype, name="fc")(x)
