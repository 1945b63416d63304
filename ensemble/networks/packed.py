"""Packed ensembles: how wide the layers of an estimator are, and layers of groups that do not mix.

Laurent, Lafage, Tartaglione, Daniel, Martinez, Bursuc and Franchi, "Packed-Ensembles for efficient
uncertainty estimation" (2023), arXiv:2210.09184: M estimators divide among them the units of each
layer of a network that is alpha times as wide, and the layers of each consist of gamma groups. The
first layer sees all inputs, the last all groups. In place of one layer of M * gamma groups, as the
paper has it, there are M networks with layers of gamma groups: the same products.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax

from ensemble.networks import layers


@dataclass(frozen=True)
class Packing:
    """What one estimator has of a network; without arguments, all of it.

    Attributes:
        num_estimators: M, which divide the units.
        alpha: how many times as wide the network is that they divide.
        num_groups: gamma, of each hidden layer but the first.
    """

    num_estimators: int = 1
    alpha: float = 1.0
    num_groups: int = 1

    def units(self, width: int) -> int:
        """Units of a hidden layer that has `width`: alpha / M of them, or a few more.

        They are a multiple of `num_groups`.
        """
        share = self.alpha * width / (self.num_estimators * self.num_groups)
        return self.num_groups * math.ceil(round(share, 6))


PLAIN = Packing()


class PackedDense(nn.Dense):
    """`nn.Dense` in groups, each from its share of the inputs to its share of the outputs.

    With one group it is `nn.Dense`. With more, the kernel is [G, I / G, features / G].

    Attributes:
        feature_group_count: G, which divides inputs and features.
    """

    feature_group_count: int = 1

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps inputs `[..., I]` to `[..., features]`."""
        groups = self.feature_group_count
        if groups == 1:
            return super().__call__(inputs)

        def start(rng_key, shape, *dtype) -> Array:
            keys = jax.random.split(rng_key, groups)
            return jax.vmap(lambda key: self.kernel_init(key, shape[1:], *dtype))(keys)

        shape = (groups, inputs.shape[-1] // groups, self.features // groups)
        kernel = self.param("kernel", start, shape, self.param_dtype)
        bias: Any = 0
        if self.use_bias:
            bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        x = inputs.reshape(*inputs.shape[:-1], groups, -1)
        x = jnp.einsum("...gi,gio->...go", x, kernel, precision=self.precision)
        return x.reshape(*inputs.shape[:-1], self.features) + bias


def _convolved(images: Array, kernel: Array, *args, feature_group_count: int, **options) -> Array:
    """`lax.conv_general_dilated` of channels last, whose groups are by themselves on CPU."""
    if feature_group_count == 1 or not layers.on_cpu():
        options["feature_group_count"] = feature_group_count
        return lax.conv_general_dilated(images, kernel, *args, **options)
    groups = (jnp.split(one, feature_group_count, axis=-1) for one in (images, kernel))
    found = [lax.conv_general_dilated(*one, *args, **options) for one in zip(*groups, strict=True)]
    return jnp.concatenate(found, axis=-1)


class PackedConv(nn.Conv):
    """`nn.Conv` in groups of channels, `feature_group_count` of them, that is fast on CPUs too.

    It has the parameters and the values of `nn.Conv`, for whose groups XLA:CPU has no fast kernel.
    """

    conv_general_dilated: Any = _convolved


def flattened(images: Array, num_groups: int = 1) -> Array:
    """Images `[N, H, W, C]` as `[N, H * W * C]`, one group of channels after the other."""
    if num_groups == 1:
        return images.reshape((images.shape[0], -1))
    x = images.reshape(*images.shape[:-1], num_groups, -1)
    return jnp.moveaxis(x, -2, 1).reshape((images.shape[0], -1))
