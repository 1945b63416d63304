"""The order of examples, and what the devices make of them: normalised, augmented."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpy.typing import NDArray

# Splits, batches, clutter, blends and searches draw from streams of their own.
SPLIT_STREAM = 1
BATCH_STREAM = 2
CLUTTER_STREAM = 3
SEARCH_STREAM = 5


def seeded_generator(stream: int, seed: int, *path: int) -> np.random.Generator:
    """A NumPy generator for (stream, seed, path): Philox, seeded through SeedSequence's hash."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([stream, seed, *path])))


def epoch_batches(
    num_examples: int,
    batch_size: int,
    seed: int,
    epoch: int,
    member: int | None = None,
    length: int | None = None,
) -> tuple[NDArray, NDArray]:
    """The batches of one epoch, a pure function of the arguments: a resumed run goes on alike.

    The order is a permutation by NumPy's Philox generator, seeded with (seed, epoch, member). Every
    example comes exactly once. The last batch is filled up by repeating its own examples in turn,
    at weight 0: batch statistics then see real examples only.

    Args:
        num_examples: N.
        batch_size: B.
        seed: of the run.
        epoch: from 0.
        member: whose own order it is, or None for the order that members share.
        length: of the epoch, which begins the order again where it is longer; None: N.

    Returns:
        indices: int32 `[ceil(length / B), B]`.
        weights: float32, the same shape: 1, or 0 where an example only fills up the batch.
    """
    # SeedSequence takes [seed, epoch] for [seed, epoch, 0], so that member k has to be k + 1.
    path = (epoch, 0 if member is None else member + 1)
    order = seeded_generator(BATCH_STREAM, seed, *path).permutation(num_examples).astype(np.int32)
    order = np.resize(order, num_examples if length is None else length)
    last = order[(len(order) - 1) // batch_size * batch_size :]
    filled = np.concatenate([order[: -len(last)], np.resize(last, batch_size)])
    indices = filled.reshape(-1, batch_size)
    weights = np.ones(indices.shape, np.float32)
    weights[-1, len(last) :] = 0
    return indices, weights


def normalise(
    inputs: Array | NDArray,
    shift: Any,
    scale: Any,
    squash: jax.typing.ArrayLike | None = None,
) -> Any:
    """What networks see: z = (inputs - shift) * scale, float32, where the inputs are.

    Args:
        inputs: `[..., H, W, C]` or `[..., F]`, uint8 or float32, of JAX or NumPy.
        shift: broadcastable to an example.
        scale: broadcastable to an example.
        squash: likewise; 1 where z becomes arsinh(z), which grows as its logarithm does, else 0.
    """
    z = (inputs.astype(np.float32) - np.float32(shift)) * np.float32(scale)
    return z if squash is None else jnp.where(jnp.asarray(squash) > 0, jnp.arcsinh(z), z)


def augment(rng_keys: Array, images: Array, shift: int, flip: bool) -> Array:
    """Moves each image at random, and mirrors it left to right with probability 1/2.

    Args:
        rng_keys: `[B]`, one key per image.
        images: `[B, H, W, C]`, any dtype.
        shift: the largest translation in pixels, along both axes; 0 is none. Zeros come in.
        flip: whether to mirror.

    Returns:
        `[B, H, W, C]`, the dtype of `images`.
    """

    def augment_one(rng_key: Array, image: Array) -> Array:
        key_shift, key_flip = random.split(rng_key)
        if shift:
            padded = jnp.pad(image, ((shift, shift), (shift, shift), (0, 0)))
            row, column = random.randint(key_shift, (2,), 0, 2 * shift + 1)
            image = jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)
        if flip:
            image = jnp.where(random.bernoulli(key_flip), image[:, ::-1], image)
        return image

    return jax.vmap(augment_one)(rng_keys, images)
