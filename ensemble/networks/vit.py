"""Vision transformers, with the parameters of the published weights.

Dosovitskiy et al., "An image is worth 16x16 words" (2020), arXiv:2010.11929. Sizes are those of
Steiner et al., "How to train your ViT?" (2021), arXiv:2106.10270. Names and shapes of parameters
are those of the files that come with it, https://github.com/google-research/vision_transformer, so
that these are weights to start from as they are: `config.init_from`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from ensemble.errors import InputError

SIZES = {"Ti": (192, 12, 3), "S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16)}
"""Width, number of blocks and attention heads; a block's hidden layer is four times as wide."""


class Scope(nn.Module):
    """A function of layers, whose parameters are under its name.

    Attributes:
        body: from tokens `[N, T, F]` to as many.
    """

    body: Callable[[Any], Any]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return self.body(x)


class Positions(nn.Module):
    """Adds to each token what is learned for its place."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.normal(0.02)
        return x + self.param("pos_embedding", init, (1, *x.shape[1:])).astype(x.dtype)


def _weighted_sum(equation: str, weights: Array, values: Array) -> Array:
    """Flax would compute the product, too, in the dtype of the softmax."""
    return jnp.einsum(equation, weights.astype(values.dtype), values)


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
    def __call__(self, images: Array, train: bool = False) -> Array:
        """Maps images `[N, H, W, C]` to outputs `[N, num_outputs]`.

        Raises:
            InputError: they cannot be cut into patches.
        """
        width, depth, num_heads = SIZES[self.size]
        dtype = self.dtype
        patch = (self.patch, self.patch)
        shape = images.shape[1:]
        if len(shape) != 3 or shape[0] % self.patch or shape[1] % self.patch:
            raise InputError(
                f"config.model='vit' takes images [H, W, C] whose sides are multiples of "
                f"config.vit.patch={self.patch}, and these inputs have the shape {shape}; choose "
                "another patch, a size by config.resize, or another network"
            )
        xavier = nn.initializers.xavier_uniform()
        dense = partial(nn.Dense, dtype=dtype, kernel_init=xavier)
        norm = partial(nn.LayerNorm, dtype=dtype)

        def dropped(x):
            return nn.Dropout(self.dropout)(x, deterministic=not train)

        def hidden(x):
            x = dropped(nn.gelu(dense(4 * width)(x)))
            return dropped(dense(width)(x))

        def block(x):
            """Attention and a hidden layer, each behind a norm and beside a shortcut."""
            attend = nn.MultiHeadDotProductAttention(
                num_heads,
                dtype=dtype,
                force_fp32_for_softmax=True,  # Of weights in half precision the sum would not be 1.
                qk_attn_weights_einsum_cls=lambda: jnp.einsum,  # Its default; the next needs it.
                attn_weights_value_einsum_cls=lambda: _weighted_sum,
                kernel_init=xavier,
                name="MultiHeadDotProductAttention_1",
            )
            x = x + dropped(attend(norm(name="LayerNorm_0")(x)))
            return x + Scope(hidden, name="MlpBlock_3")(norm(name="LayerNorm_2")(x))

        def encoder(x):
            x = dropped(Positions(name="posembed_input")(x))
            for i in range(depth):
                x = Scope(block, name=f"encoderblock_{i}")(x)
            return norm(name="encoder_norm")(x)

        embed = nn.Conv(width, patch, patch, padding="VALID", dtype=dtype, name="embedding")
        x = embed(images).reshape(len(images), -1, width)
        first = self.param("cls", nn.initializers.zeros, (1, 1, width))
        x = jnp.concatenate([jnp.tile(first.astype(x.dtype), (len(x), 1, 1)), x], axis=1)
        x = Scope(encoder, name="Transformer")(x)
        # The published code starts the head at zero: all members would have the same one.
        return nn.Dense(self.num_outputs, dtype=dtype, name="head")(x[:, 0])
