"""A multilayer perceptron of tables, behind an embedding of each number.

Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning"
(2022), arXiv:2203.05556: networks learn sharp functions of a number more easily from several
numbers that are made of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from ensemble import network_keys
from ensemble.networks.mlp import MLP
from ensemble.networks.packed import PLAIN, Packing

Quantiles = tuple[tuple[float, ...], ...]
"""The quantiles of each feature [F, NUM_QUANTILES], as the network sees it; hashable, as modules
are."""
_DEFAULTS = {
    name.removeprefix("embedded_mlp."): key.default
    for name, key in network_keys.EMBEDDED_MLP.keys.items()
}


class PiecewiseLinear(nn.Module):
    """Embeds numbers by a line, and by lines between quantiles, which start without effect.

    The encoding of a number x by bins has an entry for each: 0 below the bin, 1 above, and
    (x - left) / width within; the first and the last go on beyond. A feature has its own line and
    its own kernel of the encoding.

    Attributes:
        size: D, numbers that a feature is mapped to.
        edges: of the bins [F, T + 1], ascending; equal ones have no bin between them.
        dtype: computed in; None: float32.
    """

    size: int
    edges: Quantiles
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs [B, F] to [B, F, size]."""
        edges = np.asarray(self.edges, np.float32)
        left, width = edges[:, :-1], np.diff(edges)
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
        scale: standard deviation of the frequencies, at the start.
        dtype: computed in; None: float32.
    """

    size: int
    scale: float
    dtype: Any = None
    num_frequencies = 48

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs [B, F] to [B, F, size]."""
        num_features, num_waves = inputs.shape[1], 2 * self.num_frequencies
        normal = nn.initializers.truncated_normal(self.scale, lower=-3.0, upper=3.0)
        frequencies = self.param("frequencies", normal, (num_features, self.num_frequencies))
        shape = (num_features, num_waves, self.size)
        kernel = self.param("kernel", _uniform(num_waves), shape)
        bias = self.param("bias", _uniform(num_waves), (num_features, self.size))
        angles = 2 * np.pi * frequencies * inputs[:, :, None]
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        waves, kernel, bias = nn.dtypes.promote_dtype(waves, kernel, bias, dtype=self.dtype)
        return nn.relu(jnp.einsum("bfw,fwd->bfd", waves, kernel) + bias)


class EmbeddedMLP(nn.Module):
    """An `MLP` of embedded features; those of two values, such as flags, go to it as they are.

    So do those that have one value in nearly all rows.

    Attributes:
        num_outputs: K.
        input_quantiles: of the features, see `Quantiles`.
        widths: units of each hidden layer.
        activation: of these, as of `MLP`.
        dropout: as of `MLP`.
        embedding: one of `network_keys.EMBEDDINGS`.
        size: numbers that a feature is mapped to.
        num_bins: of `PiecewiseLinear`, which divides 64.
        frequency_scale: of `Periodic`.
        dtype: computed in; None: float32.
        packing: as of `MLP`; an estimator has embeddings of its own.
    """

    num_outputs: int
    input_quantiles: Quantiles
    widths: tuple[int, ...]
    activation: str
    dropout: float
    embedding: str
    size: int
    num_bins: int
    frequency_scale: float
    dtype: Any = None
    packing: Packing = PLAIN

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Maps inputs [N, F] to outputs [N, num_outputs]."""
        quantiles = np.asarray(self.input_quantiles, np.float32)
        is_number = np.array([len(np.unique(one)) > 2 for one in quantiles])
        parts = []
        if is_number.any():
            every = (quantiles.shape[1] - 1) // self.num_bins
            edges = tuple(map(tuple, quantiles[is_number][:, ::every].tolist()))
            embed = (
                PiecewiseLinear(self.size, edges, self.dtype, name="embedding")
                if self.embedding == "piecewise_linear"
                else Periodic(self.size, self.frequency_scale, self.dtype, name="embedding")
            )
            embedded = embed(inputs[:, is_number])
            parts.append(embedded.reshape(inputs.shape[0], -1))
        if not is_number.all():
            parts.append(inputs[:, ~is_number])
        hidden = (self.widths, self.activation, self.dropout, self.dtype, self.packing)
        mlp = MLP(self.num_outputs, *hidden, name="mlp")
        return mlp(jnp.concatenate(parts, axis=-1), train)


def embedded_mlp(
    num_outputs: int,
    input_quantiles: Quantiles,
    dtype: Any = None,
    packing: Packing = PLAIN,
    **settings: Any,
) -> EmbeddedMLP:
    """Makes what `config.model=embedded_mlp` says.

    Args:
        num_outputs: K.
        input_quantiles: of the features.
        dtype: computed in.
        packing: of an estimator of a packed ensemble.
        settings: values of the network's keys, where they are not the defaults.
    """
    values = {**_DEFAULTS, **settings}
    values["widths"] = network_keys.parse_widths(values["widths"])
    return EmbeddedMLP(num_outputs, input_quantiles, dtype=dtype, packing=packing, **values)


def _uniform(fan_in: int) -> nn.initializers.Initializer:
    """Evenly between plus and minus one by the root of `fan_in`."""
    bound = fan_in**-0.5

    def start(rng_key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(rng_key, shape, dtype, -bound, bound)

    return start
