"""What members see of a batch in training: its images moved, and then what a user makes of it."""

import functools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble.config.pieces import AUGMENTATIONS
from ensemble.data.batches import augment
from ensemble.data.source import Source
from ensemble.errors import InputError

_OWN = 2
"""What the key of an example is folded with; `augment` splits it, which takes 0 and 1."""


def augments(config: ml_collections.FrozenConfigDict) -> bool:
    """Whether members see anything else than the examples as they are."""
    return _moves_images(config) or config.augment.function is not None


def augmented(
    config: ml_collections.FrozenConfigDict, rng_keys: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Makes of raw inputs what members see, which are normalised next.

    Args:
        config: of the run.
        rng_keys: `[B]`, one key per example.
        inputs: `[B, ...]`, raw.

    Returns:
        `[B, ...]`, the dtype of `inputs` or float32.

    Raises:
        InputError: a user's augmentation fails, or returns something else.
    """
    if _moves_images(config):
        inputs = augment(rng_keys, inputs, config.augment.shift, config.augment.horizontal_flip)
    if config.augment.function is None:
        return inputs
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(rng_keys, _OWN)
    return jax.vmap(functools.partial(_own, config.augment.function))(keys, inputs)


def check_augmentation(config: ml_collections.FrozenConfigDict, dataset: Source) -> None:
    """Refuses to move what is no image, or out of sight, and augmentations that cannot be used.

    Raises:
        InputError: as said.
    """
    shape, shift, name = dataset.input_shape, config.augment.shift, config.augment.function
    if _moves_images(config) and not dataset.has_pictures:
        raise InputError(
            f"config.augment is for images [H, W, C]; {dataset.name} has inputs of shape "
            f"{shape}: set augment.shift=0 and augment.horizontal_flip=False"
        )
    if shift and shift >= min(shape[:2]):
        raise InputError(
            f"config.augment.shift={shift} pixels must be less than the {min(shape[:2])} of the "
            "images"
        )
    if name is None:
        return
    rng_keys = jax.random.split(jax.random.key(config.seed), 1)
    example = jax.ShapeDtypeStruct((1, *shape), dataset.input_dtype)
    jax.eval_shape(functools.partial(augmented, config), rng_keys, example)


def _moves_images(config: ml_collections.FrozenConfigDict) -> bool:
    return bool(config.augment.shift or config.augment.horizontal_flip)


def _own(name: str, rng_key: jax.Array, example: jax.Array) -> jax.Array:
    """What a user's augmentation makes of one example."""
    inputs = example[None]
    made = AUGMENTATIONS.call(name, rng_key, inputs)
    is_array = isinstance(made, jax.Array | np.ndarray)
    types = (inputs.dtype, jnp.float32)
    if not is_array or made.shape != inputs.shape or made.dtype not in types:
        found = _form(made) if is_array else f"a {type(made).__name__}"
        raise InputError(
            f"the augmentation {name} made {found} of {_form(inputs)}; it must return "
            "an array of the same shape, and of the same type or float32"
        )
    return jnp.asarray(made)[0]


def _form(array: jax.Array | np.ndarray) -> str:
    """Type and shape of an array, for messages."""
    return f"{array.dtype}{list(array.shape)}"
