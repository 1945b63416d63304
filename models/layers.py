"""Convolutions that train fast on CPUs too; the same parameters and values as Flax's.

XLA's CPU compiler is fast on a convolution only in the layout NHWC x HWIO -> NHWC. It rewrites the
other layouts, among them that of a weight gradient, but not inside a loop (`lax.scan`), where they
run some fifty times slower. Here the gradients are written in the fast layout to begin with. On
accelerators a convolution is `lax.conv_general_dilated` and nothing else.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import ArrayLike

Padding = tuple[tuple[int, int], tuple[int, int]]

_default_kernel_init = nn.initializers.lecun_normal()


def conv(images: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
    """Convolves with stride 1. On CPU it can be differentiated in reverse mode only.

    Args:
      images: `[N, H, W, C]`.
      kernel: `[K_h, K_w, C, F]`.
      padding: rows of zeros before and after, then columns.

    Returns:
      `[N, H', W', F]` with `H' = H + padding - K_h + 1`, and W' likewise.
    """
    if _on_cpu():
        return _conv_with_fast_gradients(images, kernel, padding)
    return _conv(images, kernel, padding)


def conv_relu_pool(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """A 3x3 convolution with zeros around, a rectifier and an average over windows of 2x2.

    The average is taken as a sum of quarters, by quartering kernel and bias, which is exact.

    Args:
      images: `[N, H, W, C]`.
      kernel: `[3, 3, C, F]`.
      bias: `[F]`.

    Returns:
      `[N, H // 2, W // 2, F]`; an odd last row or column is dropped, as by `nn.avg_pool`.
    """
    kernel, bias = kernel / 4, bias / 4
    if _on_cpu() and images.shape[-1] <= 4:
        windows = _conv_in_windows(images, kernel) + bias
        return _relu(windows).sum(axis=3)
    n, height, width, _ = images.shape
    x = conv(images, kernel, ((1, 1 - height % 2), (1, 1 - width % 2))) + bias
    return _relu(x).reshape(n, height // 2, 2, width // 2, 2, -1).sum(axis=(2, 4))


class Conv(nn.Module):
    """`nn.Conv` with stride 1 and padding 'SAME': the same parameters, the same values.

    Attributes:
      features: channels put out.
      kernel_size: rows and columns of the kernel.
    """

    features: int
    kernel_size: Sequence[int]

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images `[N, H, W, C]` to `[N, H, W, features]`."""
        kernel, bias = _conv_params(self, self.features, self.kernel_size, images)
        rows, columns = self.kernel_size
        return conv(images, kernel, (_same_padding(rows), _same_padding(columns))) + bias


class ConvReluPool(nn.Module):
    """`nn.Conv` with a 3x3 kernel, `nn.relu` and `nn.avg_pool` of 2x2, with nn.Conv's parameters.

    Attributes:
      features: channels put out.
    """

    features: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images `[N, H, W, C]` to `[N, H // 2, W // 2, features]`."""
        kernel, bias = _conv_params(self, self.features, (3, 3), images)
        return conv_relu_pool(images, kernel, bias)
