"""Convolutions that train fast on CPUs too, with the parameters and the values of Flax's own.

What XLA's CPU compiler (jaxlib 0.10 to 0.12) does well decides their form:

- It is fast on a convolution only in the layout NHWC x HWIO -> NHWC. It rewrites others, among
  them that of a weight gradient, but not inside a loop such as `lax.scan`, where they run some
  fifty times slower. `conv` writes its gradients in the fast layout itself.
- On few input channels a convolution is bound by memory. `conv_relu_pool` then makes one matrix
  product of it, each row of which holds all that one pooled pixel needs. `conv_relu_max_pool` has
  blocks of 2x2 pixels as channels, and compares the four outputs of a window where they are.
- Mapped over networks it becomes a grouped one, for which there is no fast kernel. Samplers map,
  and small data sets allow to unfold the images: `mapped_over_networks`.
- Mapped over networks, dense layers of few units are small products with few numbers in a row.
  With examples in the columns, rows are long, and whole vectors of them are computed at once.

On accelerators these are `lax.conv_general_dilated` and nothing else.
"""

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax

from ensemble.sharding.mesh import traced_platform

_is_mapped = contextvars.ContextVar("is_mapped", default=False)


@contextmanager
def mapped_over_networks() -> Iterator[None]:
    """On CPU, what is traced within has the form that is fast when it is vmapped over networks.

    Convolutions multiply patches of the images by the kernel: a product stays one. The patches take
    as many times the memory of the images as the kernel has pixels. Multilayer perceptrons have
    their examples in columns.
    """
    token = _is_mapped.set(True)
    try:
        yield
    finally:
        _is_mapped.reset(token)


def are_mapped() -> bool:
    """Whether networks are traced within `mapped_over_networks`, on CPU."""
    return _is_mapped.get() and on_cpu()


Padding = tuple[tuple[int, int], tuple[int, int]]

# Up to here the matrix product, with 16/9 of the multiplications, is faster than a convolution.
_FEW_CHANNELS = 4


class DenseOfColumns(nn.Module):
    """`nn.Dense` of transposed inputs: the same parameters, the same values, transposed.

    Attributes:
        features: units.
        kernel_init: starts the kernel.
    """

    features: int
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, columns: Array) -> Array:
        """Maps columns `[F, N]`, one an example, to `[features, N]`."""
        kernel = self.param("kernel", self.kernel_init, (len(columns), self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return kernel.T @ columns + bias[:, None]


class ConvReluPool(nn.Module):
    """`nn.Conv` with zeros around, `nn.relu` and pooling of 2x2 in one, with nn.Conv's parameters.

    Attributes:
        layer: `conv_relu_pool`, of the average, or `conv_relu_max_pool`.
        features: channels put out.
        kernel_size: rows and columns of the kernel; of an average, 3 each.
        dtype: computed in; None: that of images and parameters.
        feature_group_count: as of `nn.Conv`; the groups are computed one after the other.
    """

    layer: Callable[..., Array]
    features: int
    kernel_size: tuple[int, int] = (3, 3)
    dtype: Any = None
    feature_group_count: int = 1

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps images `[N, H, W, C]` to `[N, H', W', features]` of half the height and width."""
        groups = self.feature_group_count
        shape = (*self.kernel_size, images.shape[-1] // groups, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        operands = nn.dtypes.promote_dtype(images, kernel, bias, dtype=self.dtype)
        parts = zip(*(jnp.split(one, groups, axis=-1) for one in operands), strict=True)
        return jnp.concatenate([self.layer(*part) for part in parts], axis=-1)


def conv(images: Array, kernel: Array, padding: Padding) -> Array:
    """Convolves with stride 1. On CPU it can be differentiated in reverse mode only.

    Args:
        images: `[N, H, W, C]`.
        kernel: `[K_h, K_w, C, F]`.
        padding: how many rows of zeros to put before and after, and how many columns.

    Returns:
        `[N, H', W', F]`, where H' is H and the padding less K_h - 1, and W' likewise.
    """
    if are_mapped():
        return _conv_as_product(images, kernel, padding)
    if on_cpu():
        return _conv_with_fast_gradients(images, kernel, padding)
    return _conv(images, kernel, padding)


def conv_relu_pool(images: Array, kernel: Array, bias: Array) -> Array:
    """A 3x3 convolution with zeros around, a rectifier, and the average of each 2x2 window.

    Args:
        images: `[N, H, W, C]`.
        kernel: `[3, 3, C, F]`.
        bias: `[F]`.

    Returns:
        `[N, H // 2, W // 2, F]`: an odd last row or column is dropped, as by `nn.avg_pool`.
    """
    n, height, width, channels = images.shape
    padding = ((1, 1 - height % 2), (1, 1 - width % 2))
    kernel, bias = kernel / 4, bias / 4  # exact: the average becomes a sum
    if channels <= _FEW_CHANNELS and on_cpu():
        return _relu(_conv_in_windows(images, kernel, bias, padding)).sum(axis=3)
    x = _relu(conv(images, kernel, padding) + bias)
    return x.reshape(n, height // 2, 2, width // 2, 2, -1).sum(axis=(2, 4))


def conv_relu_max_pool(images: Array, kernel: Array, bias: Array) -> Array:
    """A convolution with zeros around, a rectifier, and the largest of each 2x2 window.

    On CPU it can be differentiated in reverse mode only, as `conv`.

    Args:
        images: `[N, H, W, C]`.
        kernel: `[K_h, K_w, C, F]`.
        bias: `[F]`.

    Returns:
        `[N, ceil(H / 2), ceil(W / 2), F]`: windows that reach beyond the image are smaller.
    """
    sizes = kernel.shape[:2]
    in_blocks = all(size % 2 == 0 for size in images.shape[1:3]) and all(k % 2 for k in sizes)
    # Networks that are mapped multiply patches: a mapped convolution is slow, of blocks too.
    if in_blocks and on_cpu() and not are_mapped():
        return nn.relu(_first_largest(_conv_in_blocks(images, kernel)) + bias)
    rows, columns = (((k - 1) // 2, k // 2) for k in sizes)
    x = nn.relu(conv(images, kernel, (rows, columns)) + bias)
    return nn.max_pool(x, (2, 2), (2, 2), "SAME")


def on_cpu() -> bool:
    """Whether programs are compiled for CPU, whose fast forms are not an accelerator's."""
    return traced_platform() == "cpu"


def _relu(x: Array) -> Array:
    """`nn.relu`; as a maximum, XLA:CPU would fuse it with a sum and write out the zeros."""
    return jnp.where(x <= 0, 0, x)  # NaN stays NaN.


def _conv(images: Array, kernel: Array, padding: Padding) -> Array:
    return lax.conv_general_dilated(
        images, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


_conv_with_fast_gradients = jax.custom_vjp(_conv, nondiff_argnums=(2,))


def _conv_forward(images, kernel, padding):
    return _conv(images, kernel, padding), (images, kernel)


def _conv_backward(padding, residuals, grads):
    """Gradients with respect to images and kernel, each a convolution NHWC x HWIO -> NHWC."""
    images, kernel = residuals
    flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    rows, columns = (
        (size - 1 - before, size - 1 - after)
        for size, (before, after) in zip(kernel.shape, padding, strict=False)
    )
    images_grad = _conv(grads, flipped, (rows, columns))
    return images_grad, _kernel_gradient(images, grads, padding)


_conv_with_fast_gradients.defvjp(_conv_forward, _conv_backward)


def _kernel_gradient(images: Array, grads: Array, padding: Padding) -> Array:
    """The gradient with respect to the kernel, as a convolution whose kernel is `grads`.

    XLA's library YNN is slower at it than Eigen, and leaves to Eigen what it refuses: a kernel
    taller than its input (decision 0046). So `grads` get rows of zeros. The columns' padding
    becomes part of the images, or XLA exchanges the two operands.

    Args:
        images: `[N, H, W, C]`.
        grads: of the outputs, `[N, H', W', F]`.
        padding: of the convolution.

    Returns:
        `[K_h, K_w, C, F]`.
    """
    (top, bottom), columns = padding
    images = jnp.pad(images, ((0, 0), (0, 0), columns, (0, 0)))
    height, width = images.shape[1:3]
    extra = max(height + 1 - grads.shape[1], 0)
    if (grads.shape[1] + extra) * grads.shape[2] > height * width:
        extra = 0  # XLA exchanges operands by size, too.
    grads = jnp.pad(grads, ((0, 0), (0, extra), (0, 0), (0, 0)))
    # Channels take the place of examples, and examples that of channels: [C, H, W, N].
    images = images.transpose(3, 1, 2, 0)
    grads = grads.transpose(1, 2, 0, 3)
    return _conv(images, grads, ((top, bottom + extra), (0, 0))).transpose(1, 2, 0, 3)


def _conv_as_product(images: Array, kernel: Array, padding: Padding) -> Array:
    """`_conv` as the product of patches [N * H' * W', K_h * K_w * C] with the kernel."""
    x = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    rows, columns, channels, features = kernel.shape
    height = x.shape[1] - rows + 1
    width = x.shape[2] - columns + 1
    patches = jnp.concatenate(
        [x[:, i : i + height, j : j + width] for i in range(rows) for j in range(columns)], axis=-1
    )
    matrix = kernel.reshape(rows * columns * channels, features)
    product = patches.reshape(-1, rows * columns * channels) @ matrix
    return product.reshape(len(images), height, width, features)


def _conv_in_windows(images: Array, kernel: Array, bias: Array, padding: Padding) -> Array:
    """A 3x3 convolution as one matrix product, grouped by 2x2 windows of its output.

    The four outputs of a window depend on the same 4x4 pixels: one row of the left matrix. The
    right one holds the kernel four times, at its four places among the 4x4.

    Args:
        images: `[N, H, W, C]`.
        kernel: `[3, 3, C, F]`.
        bias: `[F]`.
        padding: rows and columns around, which make the output's height and width even.

    Returns:
        `[N, H // 2, W // 2, 4, F]`.
    """
    n, height, width, channels = images.shape
    features = kernel.shape[-1]
    height = height // 2
    width = width // 2
    x = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    x = _in_blocks(x)  # 2x2 blocks hold the 4x4 pixels of a window.
    blocks = [x[:, i : i + height, j : j + width] for i in (0, 1) for j in (0, 1)]
    patches = jnp.concatenate([*blocks, jnp.ones((n, height, width, 1), x.dtype)], axis=-1)
    products = _kernel_in_blocks(kernel).reshape(16 * channels, 4 * features)
    matrix = jnp.concatenate([products, jnp.tile(bias, 4)[None]])
    x = patches.reshape(-1, 16 * channels + 1) @ matrix
    return x.reshape(n, height, width, 4, features)


def _conv_in_blocks(images: Array, kernel: Array) -> Array:
    """A convolution with zeros around that has blocks of 2x2 pixels as its channels.

    All four outputs of a block depend on the same blocks. So there are four times the channels, in
    and out, at a quarter of the places. A kernel of 5x5 takes 36/25 of the multiplications.

    Args:
        images: `[N, H, W, C]`, H and W even.
        kernel: `[K_h, K_w, C, F]`, both sizes odd.

    Returns:
        `[N, H // 2, W // 2, 4, F]`.
    """
    around = [(size // 2, size // 2) for size in kernel.shape[:2]]
    x = _in_blocks(jnp.pad(images, ((0, 0), *around, (0, 0))))
    x = conv(x, _kernel_in_blocks(kernel), ((0, 0), (0, 0)))
    return x.reshape(*x.shape[:3], 4, kernel.shape[-1])


def _in_blocks(images: Array) -> Array:
    """Makes channels of blocks of 2x2 pixels: `[N, H // 2, W // 2, 4 * C]`."""
    n, height, width, channels = images.shape
    x = images.reshape(n, height // 2, 2, width // 2, 2 * channels).transpose(0, 1, 3, 2, 4)
    return x.reshape(n, height // 2, width // 2, 4 * channels)


def _kernel_in_blocks(kernel: Array) -> Array:
    """A kernel `[K_h, K_w, C, F]` of odd sizes at its four places in blocks of 2x2 pixels.

    Returns:
        `[(K_h + 1) // 2, (K_w + 1) // 2, 4 * C, 4 * F]`.
    """
    channels, features = kernel.shape[2:]
    rows, columns = ((size + 1) // 2 for size in kernel.shape[:2])
    places = [
        jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i in (0, 1) for j in (0, 1)
    ]
    x = jnp.stack(places, axis=3).reshape(rows, 2, columns, 2, channels, 4 * features)
    return x.transpose(0, 2, 1, 3, 4, 5).reshape(rows, columns, 4 * channels, 4 * features)


def _first_largest(x: Array) -> Array:
    """Returns the largest of four, `[..., 4, F] -> [..., F]`.

    The first of equal ones has the gradient, as with `nn.max_pool`.
    """

    def larger(first: Array, second: Array) -> Array:
        return jnp.where((second > first) | jnp.isnan(second), second, first)

    a, b, c, d = (x[..., k, :] for k in range(4))
    return larger(larger(a, b), larger(c, d))
