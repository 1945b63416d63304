"""Vision transformers, with the parameters of the published weights.

Dosovitskiy et al., "An image is worth 16x16 words" (2020), arXiv:2010.11929. Sizes are those of
Steiner et al., "How to train your ViT?" (2021), arXiv:2106.10270. Names and shapes of parameters
are those of the files that come with it, https://github.com/google-research/vision_transformer, so
that these are weights to start from as they are: `config.init_from`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from ensemble.errors import InputError


class Size(NamedTuple):
    """How large a transformer is; the hidden layer of a block is four times as wide."""

    width: int
    depth: int
    num_heads: int


SIZES = {
    "Ti": Size(192, 12, 3),
    "S": Size(384, 12, 6),
    "B": Size(768, 12, 12),
    "L": Size(1024, 24, 16),
}


class Hidden(nn.Module):
    """The dense layers of a block.

    Attributes:
        dropout: share of the units that are dropped in training.
        dtype: computed in.
    """

    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps tokens `[N, T, F]` to as many."""
        width = x.shape[-1]
        init = nn.initializers.xavier_uniform()
        x = nn.Dense(4 * width, dtype=self.dtype, kernel_init=init)(x)
        x = nn.Dropout(self.dropout)(nn.gelu(x), deterministic=not train)
        x = nn.Dense(width, dtype=self.dtype, kernel_init=init)(x)
        return nn.Dropout(self.dropout)(x, deterministic=not train)


class Block(nn.Module):
    """Attention and a hidden layer, each behind a norm and beside a shortcut.

    Attributes:
        num_heads: of the attention.
        dropout: share of the units that are dropped in training.
        dtype: computed in.
    """

    num_heads: int
    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps tokens `[N, T, F]` to as many."""
        y = nn.LayerNorm(dtype=self.dtype, name="LayerNorm_0")(x)
        y = nn.MultiHeadDotProductAttention(
            self.num_heads,
            dtype=self.dtype,
            force_fp32_for_softmax=True,  # Of weights in half precision the sum would not be 1.
            qk_attn_weights_einsum_cls=lambda: jnp.einsum,  # Its default, asked for by the next.
            attn_weights_value_einsum_cls=lambda: _weighted_sum,
            kernel_init=nn.initializers.xavier_uniform(),
            name="MultiHeadDotProductAttention_1",
        )(y)
        x = x + nn.Dropout(self.dropout)(y, deterministic=not train)
        y = nn.LayerNorm(dtype=self.dtype, name="LayerNorm_2")(x)
        return x + Hidden(self.dropout, self.dtype, name="MlpBlock_3")(y, train)


def _weighted_sum(equation: str, weights: jax.Array, values: jax.Array) -> jax.Array:
    """Flax would compute the product, too, in the dtype of the softmax."""
    return jnp.einsum(equation, weights.astype(values.dtype), values)


class Positions(nn.Module):
    """Adds to each token what is learned for its place."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps tokens `[N, T, F]` to as many."""
        init = nn.initializers.normal(0.02)
        return x + self.param("pos_embedding", init, (1, *x.shape[1:])).astype(x.dtype)


class Encoder(nn.Module):
    """Blocks over tokens with their places.

    Attributes:
        size: of the network.
        dropout: share of the units that are dropped in training.
        dtype: computed in.
    """

    size: Size
    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps tokens `[N, T, F]` to as many."""
        x = Positions(name="posembed_input")(x)
        x = nn.Dropout(self.dropout)(x, deterministic=not train)
        for i in range(self.size.depth):
            block = Block(self.size.num_heads, self.dropout, self.dtype, name=f"encoderblock_{i}")
            x = block(x, train)
        return nn.LayerNorm(dtype=self.dtype, name="encoder_norm")(x)


class ViT(nn.Module):
    """A transformer of patches: with size S and patches of 16, 22,050,664 parameters on ImageNet.

    Attributes:
        num_outputs: K, of a classifier its logits.
        size: one of `SIZES`.
        patch: pixels along a side of a patch.
        dropout: share of the units that are dropped in training.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    size: str = "S"
    patch: int = 16
    dropout: float = 0.0
    dtype: Any = None

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images `[N, H, W, C]` to outputs `[N, num_outputs]`.

        Raises:
            InputError: they cannot be cut into patches.
        """
        size = SIZES[self.size]
        patch = (self.patch, self.patch)
        shape = images.shape[1:]
        if len(shape) != 3 or shape[0] % self.patch or shape[1] % self.patch:
            raise InputError(
                f"config.model='vit' takes images [H, W, C] whose sides are multiples of "
                f"config.vit.patch={self.patch}, and these inputs have the shape {shape}; choose "
                "another patch, a size by config.resize, or another network"
            )
        x = nn.Conv(size.width, patch, patch, padding="VALID", dtype=self.dtype, name="embedding")(
            images
        )
        x = x.reshape(len(x), -1, size.width)
        first = self.param("cls", nn.initializers.zeros, (1, 1, size.width))
        x = jnp.concatenate([jnp.tile(first.astype(x.dtype), (len(x), 1, 1)), x], axis=1)
        x = Encoder(size, self.dropout, self.dtype, name="Transformer")(x, train)
        # The published code starts the head at zero: all members would have the same one.
        return nn.Dense(self.num_outputs, dtype=self.dtype, name="head")(x[:, 0])
