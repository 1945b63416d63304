"""How an output becomes the scale of a distribution."""

import math

import jax

MIN_SCALE = 1e-3
"""The least scale of a distribution, in standard deviations of the training targets: without it a
density could grow without bound on a target that repeats."""


def bounded(raw: jax.Array, most: float) -> jax.Array:
    """Maps a number to a scale between `MIN_SCALE` and `most`, and 0 to 1: a sigmoid, moved."""
    share = (1 - MIN_SCALE) / (most - MIN_SCALE)
    return MIN_SCALE + (most - MIN_SCALE) * jax.nn.sigmoid(raw + math.log(share / (1 - share)))


def positive(raw: jax.Array, start: float = 1.0) -> jax.Array:
    """Maps a number to a scale above `MIN_SCALE`, and 0 to `start`: softplus, moved."""
    return MIN_SCALE + jax.nn.softplus(raw + math.log(math.expm1(start - MIN_SCALE)))
