"""What every augmentation promises: an example of the same form, drawn by its key alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from ensemble import registry
from ensemble.config_rules import validate
from ensemble.methods.members.augmenting import augmented
from ensemble.testing.promises import Promise, demand, keep_all, promise

_NUM_EXAMPLES = 6


@dataclasses.dataclass(frozen=True)
class AugmentationCase:
    """An augmentation of raw inputs.

    Attributes:
        name: of the augmentation; `none` where the settings say one.
        input_shape: of an example.
        dtype: of an example; None: uint8 of pictures, float32 of features.
        settings: further keys of the configuration, by name.
    """

    name: str
    input_shape: tuple[int, ...] = (8, 8, 1)
    dtype: DTypeLike | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "augmentation"

    @functools.cached_property
    def config(self) -> Any:
        """The configuration of a run that has it."""
        return validate({"num_epochs": 1, **self.settings, "augment.name": self.name})

    @property
    def inputs(self) -> jax.Array:
        """Six raw examples: pixels from 0 to 255, or numbers around 0."""
        shape, rng_key = (_NUM_EXAMPLES, *self.input_shape), jax.random.key(1)
        dtype = np.dtype(self.dtype or (np.uint8 if len(self.input_shape) == 3 else np.float32))
        if np.issubdtype(dtype, np.integer):
            return jax.random.randint(rng_key, shape, 0, 256).astype(dtype)
        return jax.random.normal(rng_key, shape, dtype)

    def augmented(self, inputs: jax.Array) -> jax.Array:
        """What members see of them, each by a key of its own."""
        return augmented(self.config, jax.random.split(jax.random.key(0), len(inputs)), inputs)


def check_augmentation(
    name: str, input_shape: tuple[int, ...] = (8, 8, 1), dtype: DTypeLike | None = None
) -> None:
    """Checks what every augmentation promises.

    Args:
        name: of an augmentation that is registered or installed.
        input_shape: of an example: (H, W, C) of pictures, (F,) of features.
        dtype: of the raw inputs, as the data have them; None: uint8 of pictures, float32 of
            features.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such augmentation.
    """
    registry.find("augmentation", name)
    keep_all(PROMISES, AugmentationCase(name, input_shape, dtype))


_FOUND: list[Promise] = []


@promise(_FOUND, "what it returns: an array [1, ...], by functions that JAX traces")
def an_example_keeps_its_form(case: AugmentationCase) -> None:
    """An example keeps its shape, and its type or float32, wherever JAX traces the function."""
    found = jax.eval_shape(case.augmented, case.inputs)
    demand(found.shape == case.inputs.shape, f"{case.inputs.shape} became {found.shape}")


@promise(_FOUND, "divisions by a spread that can be 0, and logarithms")
def values_are_finite(case: AugmentationCase) -> None:
    """Finite inputs stay finite, also where all values of an example are alike."""
    alike = jnp.zeros_like(case.inputs)
    for what, inputs in (("values that differ", case.inputs), ("zeros", alike)):
        demand(np.isfinite(case.augmented(inputs)).all(), f"{what} give values that are not finite")


@promise(_FOUND, "numbers that are drawn by another key than the one that it is given")
def a_key_gives_the_same_again(case: AugmentationCase) -> None:
    """An example with its key is seen the same to the bit each time, and alone as in its batch."""
    first, again = (case.augmented(case.inputs) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    keys = jax.random.split(jax.random.key(0), _NUM_EXAMPLES)
    some = augmented(case.config, keys[3:], case.inputs[3:])
    np.testing.assert_array_equal(some, first[3:], err_msg="without the examples before")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of augmentations, in order."""
