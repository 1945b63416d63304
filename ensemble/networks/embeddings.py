"""Embeddings of the numbers of a table.

Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning"
(2022), arXiv:2203.05556: networks learn sharp functions of a number more easily from several
numbers that are made of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

Quantiles = tuple[tuple[float, ...], ...]
"""The quantiles of each feature [F, NUM_QUANTILES], as the network sees it; hashable, as modules
are."""
_NUM_BINS = 32
_NUM_FREQUENCIES = 48
_FREQUENCY_SCALE = 0.05


class PiecewiseLinear(nn.Module):
    """Embeds numbers by a line, and by lines between quantiles, which start without effect.

    The encoding of a number x by bins has an entry for each: 0 below the bin, 1 above, and
    (x - left) / width within; the first and the last go on beyond. A feature has its own line and
    its own kernel of the encoding.

    Attributes:
        size: D, numbers that a feature is mapped to.
        edges: Edges of the bins [F, T + 1], ascending; equal ones have no bin between them.
        dtype: Type that it computes in; None: float32.
    """

    size: int
    edges: Quantiles
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs [B, F] to [B, F, size]."""
        edges = np.asarray(self.edges, np.float32)
        left = edges[:, :-1]
        width = np.diff(edges)
        is_bin = width > 0
        slope = np.where(is_bin, 1 / np.where(is_bin, width, 1), 0)
        order = np.cumsum(is_bin, axis=1) * is_bin  # From 1.
        lowest = np.where(order == 1, -np.inf, 0)
        highest = np.where(order == order.max(axis=1, keepdims=True), np.inf, 1)
        x = inputs[:, :, None]
        encoding = jnp.clip((x - left) * slope, lowest, np.where(is_bin, highest, 0))
        shape = (*left.shape, self.size)
        start = _uniform(self.size)
        weight, bias = (self.param(name, start, (shape[0], self.size)) for name in ("line", "bias"))
        kernel = self.param("kernel", nn.initializers.zeros, shape)
        x, encoding, weight, bias, kernel = nn.dtypes.promote_dtype(
            x, encoding, weight, bias, kernel, dtype=self.dtype
        )
        return x * weight + bias + jnp.einsum("bft,ftd->bfd", encoding, kernel)


class Periodic(nn.Module):
    """Embeds numbers by sines and cosines of learned frequencies, a dense layer and a rectifier.

    Attributes:
        size: D, numbers that a feature is mapped to.
        dtype: Type that it computes in; None: float32.
    """

    size: int
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs [B, F] to [B, F, size]."""
        num_features = inputs.shape[1]
        num_waves = 2 * _NUM_FREQUENCIES
        normal = nn.initializers.truncated_normal(_FREQUENCY_SCALE, lower=-3.0, upper=3.0)
        frequencies = self.param("frequencies", normal, (num_features, _NUM_FREQUENCIES))
        shape = (num_features, num_waves, self.size)
        kernel = self.param("kernel", _uniform(num_waves), shape)
        bias = self.param("bias", _uniform(num_waves), (num_features, self.size))
        angles = 2 * np.pi * frequencies * inputs[:, :, None]
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        waves, kernel, bias = nn.dtypes.promote_dtype(waves, kernel, bias, dtype=self.dtype)
        return nn.relu(jnp.einsum("bfw,fwd->bfd", waves, kernel) + bias)


class Embedded(nn.Module):
    """Embeds features [N, F] one by one, and puts the embeddings side by side.

    Features of two values, such as flags, are left as they are, and so are those that have one
    value in nearly all rows.

    Attributes:
        kind: `piecewise_linear` or `periodic`.
        size: Numbers that a feature is mapped to.
        quantiles: Quantiles of the features.
        dtype: Type that it computes in; None: float32.
    """

    kind: str
    size: int
    quantiles: Quantiles
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs [N, F] to [N, ...]."""
        quantiles = np.asarray(self.quantiles, np.float32)
        is_number = np.array([len(np.unique(one)) > 2 for one in quantiles])
        if not is_number.any():
            return inputs
        every = (quantiles.shape[1] - 1) // _NUM_BINS
        edges = tuple(map(tuple, quantiles[is_number][:, ::every].tolist()))
        embed = (
            PiecewiseLinear(self.size, edges, self.dtype, name="numbers")
            if self.kind == "piecewise_linear"
            else Periodic(self.size, self.dtype, name="numbers")
        )
        embedded = embed(inputs[:, is_number]).reshape(inputs.shape[0], -1)
        return jnp.concatenate([embedded, inputs[:, ~is_number].astype(embedded.dtype)], axis=-1)


def _uniform(fan_in: int) -> nn.initializers.Initializer:
    """Evenly between plus and minus one by the root of `fan_in`."""
    bound = fan_in**-0.5

    def start(rng_key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(rng_key, shape, dtype, -bound, bound)

    return start
