"""The residual network of 20 layers for small images, with group in place of batch normalisation.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2015), section 4.2:
three stages of three blocks, shortcuts without parameters (their option A). Wu and He, "Group
normalization" (2018): a member's output then depends on no other example and it keeps no batch
statistics, so that members and draws are plain parameter trees.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ensemble.networks.packed import PLAIN, PackedConv, Packing

_Conv3x3 = functools.partial(
    PackedConv, kernel_size=(3, 3), use_bias=False, kernel_init=nn.initializers.he_normal()
)


def _norm(features: int, width: int, dtype: Any) -> nn.GroupNorm:
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
    dropout: float = 0.0
    dtype: Any = None
    packing: Packing = PLAIN

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Maps `[N, H, W, C]` to `[N, ceil(H / stride), ceil(W / stride), units]`."""
        features = self.packing.units(self.features)
        groups = self.packing.num_groups
        conv = functools.partial(_Conv3x3, features, feature_group_count=groups, dtype=self.dtype)
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
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images `[N, H, W, C]` of any size to outputs `[N, num_outputs]`."""
        features = self.packing.units(16)
        x = _Conv3x3(features, dtype=self.dtype, name="Conv_0")(images)
        x = nn.relu(_norm(features, 16, self.dtype)(x))
        for stage, features in enumerate((16, 32, 64)):
            for block in range(3):
                stride = 2 if stage > 0 and block == 0 else 1
                fields = (stride, self.dropout, self.dtype, self.packing)
                x = ResidualBlock(features, *fields)(x, train)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_outputs, dtype=self.dtype)(x)
