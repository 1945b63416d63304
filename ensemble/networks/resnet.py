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

from ensemble import network_keys

_Conv3x3 = functools.partial(
    nn.Conv, kernel_size=(3, 3), use_bias=False, kernel_init=nn.initializers.he_normal()
)
_Norm = functools.partial(nn.GroupNorm, num_groups=8)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut.

    Attributes:
        features: channels put out, at least as many as come in.
        stride: 2 halves height and width (rounded up), 1 keeps them.
        dropout: share of the units that are dropped in training, between the convolutions.
        dtype: computed in.
    """

    features: int
    stride: int
    dropout: float = 0.0
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Maps `[N, H, W, C]` to `[N, ceil(H / stride), ceil(W / stride), features]`."""
        shortcut = x[:, :: self.stride, :: self.stride, :]
        shortcut = jnp.pad(shortcut, [(0, 0)] * 3 + [(0, self.features - x.shape[-1])])
        x = _Conv3x3(self.features, strides=self.stride, dtype=self.dtype)(x)
        x = nn.relu(_Norm(dtype=self.dtype)(x))
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        x = _Conv3x3(self.features, dtype=self.dtype)(x)
        return nn.relu(_Norm(dtype=self.dtype)(x) + shortcut)


class ResNet20(nn.Module):
    """Stages of 16, 32 and 64 channels, three blocks each; 269,722 parameters on CIFAR-10.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dropout: share of the units that are dropped in training, within each block.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    dropout: float = network_keys.RESNET20.keys["resnet20.dropout"].default
    dtype: Any = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images `[N, H, W, C]` of any size to outputs `[N, num_outputs]`."""
        x = _Conv3x3(16, dtype=self.dtype)(images)
        x = nn.relu(_Norm(dtype=self.dtype)(x))
        for stage, features in enumerate((16, 32, 64)):
            for block in range(3):
                stride = 2 if stage > 0 and block == 0 else 1
                x = ResidualBlock(features, stride, self.dropout, self.dtype)(x, train)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_outputs, dtype=self.dtype)(x)
