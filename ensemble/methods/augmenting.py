"""Augmentation of batches in training: images are moved, then a user's function changes them."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_collections

from ensemble.config.builtin import AUGMENTATIONS
from ensemble.data.batches import augment
from ensemble.data.source import Source
from ensemble.errors import InputError

_OWN = 2
"""Number that the key of an example is folded with; `augment` splits it: that takes 0 and 1."""


def augmentation(
    config: ml_collections.FrozenConfigDict, dataset: Source
) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """Returns what members see of raw inputs in training, which are normalised next.

    Args:
        config: Configuration of the run.
        dataset: Data.

    Returns:
        `(keys [B], inputs [B, ...]) -> inputs`, of the same type or float32; None: members see
        examples as they are.

    Raises:
        InputError: What is to be moved is no image, or moves out of sight; or a user's augmentation
            fails, or returns something else.
    """
    shape = dataset.input_shape
    shift, flip, name = (config.augment[key] for key in ("shift", "horizontal_flip", "function"))
    moves = shift or flip
    if moves and not (dataset.has_pictures and shift < min(shape[:2])):
        raise InputError(
            f"config.augment.shift={shift} and horizontal_flip={flip} are for images [H, W, C] of "
            f"more pixels; {dataset.name} has inputs of shape {shape}: set them to 0 and False"
        )

    def augmented(rng_keys: jax.Array, inputs: jax.Array) -> jax.Array:
        if moves:
            inputs = augment(rng_keys, inputs, shift, flip)
        if name is None:
            return inputs
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(rng_keys, _OWN)
        return jax.vmap(functools.partial(_own, name))(keys, inputs)

    if name is not None:
        rng_keys = jax.random.split(jax.random.key(config.seed), 1)
        example = jax.ShapeDtypeStruct((1, *shape), dataset.input_dtype)
        jax.eval_shape(augmented, rng_keys, example)
    return augmented if moves or name is not None else None


def _own(name: str, rng_key: jax.Array, example: jax.Array) -> jax.Array:
    """Calls a user's augmentation on one example."""
    inputs = example[None]
    made = AUGMENTATIONS.call(name, rng_key, inputs)
    dtype, shape = (getattr(made, name, None) for name in ("dtype", "shape"))
    if shape != inputs.shape or dtype not in (inputs.dtype, jnp.float32):
        raise InputError(
            f"the augmentation {name} made {type(made).__name__} {dtype}{shape} of {inputs.dtype}"
            f"{inputs.shape}; it must return an array of this shape, and of this type or float32"
        )
    return jnp.asarray(made)[0]
