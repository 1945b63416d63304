"""The residual network of 50 layers for photographs, with batch normalisation.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2015), arXiv:1512.03385,
with strides in the 3x3 convolutions. Layers, padding and names are those of
https://github.com/pytorch/vision/blob/main/torchvision/models/resnet.py, so that its weights need
to be transposed only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

_Conv = functools.partial(
    nn.Conv,
    use_bias=False,
    kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"),
)
_Norm = functools.partial(nn.BatchNorm, momentum=0.9, epsilon=1e-5)


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
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps `[N, H, W, C]` to `[N, ceil(H / stride), ceil(W / stride), 4 * features]`."""
        norm = functools.partial(_Norm, use_running_average=not train, dtype=self.dtype)
        conv = functools.partial(_Conv, dtype=self.dtype)
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
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
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
