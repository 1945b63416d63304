"""A multilayer perceptron, and the embedding of the numbers of a table.

Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning"
(2022), arXiv:2203.05556: networks learn sharp functions of a number more easily from several
numbers that are made of it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from ensemble.config.builtin import NO_EMBEDDING
from ensemble.networks import layers
from ensemble.networks.packed import PLAIN, PackedDense, Packing

Quantiles = tuple[tuple[float, ...], ...]
"""The quantiles of each feature [F, NUM_QUANTILES], as the network sees it; hashable, as modules
are."""
_NUM_BINS = 32


class MLP(nn.Module):
    """Hidden layers, by default two of 256 rectified units: 269,322 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        widths: units of each hidden layer, such as `256,256`.
        activation: the name of a function of `jax.nn`, such as `relu`.
        dropout: share of the units that are dropped in training, after each hidden layer.
        dtype: computed in; None: float32. Parameters are float32.
        packing: of an estimator of a packed ensemble.
        embedding: `none` or `piecewise_linear`, of each feature of a table.
        embedding_size: numbers that a feature is mapped to.
        input_quantiles: of the features, for an embedding.
    """

    num_outputs: int
    widths: Sequence[int] = (256, 256)
    activation: str = "relu"
    dropout: float = 0.0
    dtype: Any = None
    packing: Packing = PLAIN
    embedding: str = NO_EMBEDDING
    embedding_size: int = 16
    input_quantiles: Quantiles = ()

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        """Maps inputs `[N, ...]`, flattened, to outputs `[N, num_outputs]`."""
        # Flax's default (LeCun) starts tables of few features with large weights, and members stay
        # overconfident: on iris Glorot's halve the test NLL at an equal training NLL.
        init = nn.initializers.glorot_uniform()
        activate = getattr(jax.nn, self.activation)
        x = inputs.reshape((inputs.shape[0], -1))
        if self.embedding != NO_EMBEDDING:
            fields = (self.embedding_size, self.input_quantiles, self.dtype)
            x = Embedded(*fields, name="embedding")(x)
        groups = self.packing.num_groups
        in_columns = layers.are_mapped() and self.dtype is None and groups == 1
        dense: Any = partial(PackedDense, dtype=self.dtype)
        if in_columns:
            dense = layers.DenseOfColumns
        x = x.T if in_columns else x
        for i, width in enumerate(self.widths):
            options = {"feature_group_count": groups} if i and groups > 1 else {}
            units = self.packing.units(width)
            x = dense(features=units, kernel_init=init, name=f"Dense_{i}", **options)(x)
            x = nn.Dropout(self.dropout)(activate(x), deterministic=not train)
        last = f"Dense_{len(self.widths)}"
        x = dense(features=self.num_outputs, kernel_init=init, name=last)(x)
        return x.T if in_columns else x


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
    def __call__(self, inputs: Array) -> Array:
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
        bound = self.size**-0.5

        def start(rng_key: Array, shape: Sequence[int]) -> Array:
            return jax.random.uniform(rng_key, shape, jnp.float32, -bound, bound)

        shape = (*left.shape, self.size)
        weight, bias = (self.param(name, start, (shape[0], self.size)) for name in ("line", "bias"))
        kernel = self.param("kernel", nn.initializers.zeros, shape)
        x, encoding, weight, bias, kernel = nn.dtypes.promote_dtype(
            x, encoding, weight, bias, kernel, dtype=self.dtype
        )
        return x * weight + bias + jnp.einsum("bft,ftd->bfd", encoding, kernel)


class Embedded(nn.Module):
    """Embeds features [N, F] one by one, and puts the embeddings side by side.

    Features of two values, such as flags, are left as they are, and so are those that have one
    value in nearly all rows.

    Attributes:
        size: Numbers that a feature is mapped to.
        quantiles: Quantiles of the features.
        dtype: Type that it computes in; None: float32.
    """

    size: int
    quantiles: Quantiles
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps inputs [N, F] to [N, ...]."""
        quantiles = np.asarray(self.quantiles, np.float32)
        is_number = np.array([len(np.unique(one)) > 2 for one in quantiles])
        if not is_number.any():
            return inputs
        every = (quantiles.shape[1] - 1) // _NUM_BINS
        edges = tuple(map(tuple, quantiles[is_number][:, ::every].tolist()))
        embed = PiecewiseLinear(self.size, edges, self.dtype, name="numbers")
        embedded = embed(inputs[:, is_number]).reshape(inputs.shape[0], -1)
        return jnp.concatenate([embedded, inputs[:, ~is_number].astype(embedded.dtype)], axis=-1)
