"""Inputs unlike the training data: other sets, noise, constants, and how well they are told."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError
from ensemble.source import block_size

UNIFORM, CONSTANT = "uniform", "constant"
_STREAM = 3  # Of random numbers; ensemble.sources has others.
_NUM_LEVELS = 256


def uniform_noise(
    shape: Sequence[int], value_range: tuple[float, float], dtype: Any, seed: int = 0
) -> Iterator[np.ndarray]:
    """Draws every value evenly from the range, in pieces that fit in memory.

    Args:
        shape: [N, ...].
        value_range: the lowest and the highest value of the training data.
        dtype: of the training data.
        seed: of the draws.
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([_STREAM, seed])))
    low, high = value_range
    size = block_size(tuple(shape[1:]))
    left = np.empty(0, np.uint8)
    for start in range(0, shape[0], size):
        piece = (min(size, shape[0] - start), *shape[1:])
        if np.dtype(dtype) == np.uint8:
            values, left = _bytes(rng, int(low), int(high), math.prod(piece), left)
            yield values.reshape(piece)
        else:
            yield rng.uniform(low, high, piece).astype(dtype)


def _bytes(
    rng: np.random.Generator, low: int, high: int, count: int, left: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws uint8 values, and what of its bytes is left for the next call.

    `Generator.integers` draws the same (Lemire 2019, arXiv:1805.10941), but forgets at the end of a
    call what bytes are left of a word: in pieces it would draw others than at once.
    """
    span = high - low + 1
    values = np.empty(0, np.uint8)
    while len(values) < count:
        missing = max(count - len(values) - len(left), 0)
        words = rng.bytes(4 * (missing // 4 + 1))
        left = np.concatenate([left, np.frombuffer(words, np.uint8)])
        products = left.astype(np.uint16) * np.uint16(span)
        is_kept = (products & 255) >= 256 % span
        wanted = np.flatnonzero(is_kept)[: count - len(values)]
        values = np.concatenate([values, (products[wanted] >> 8).astype(np.uint8) + np.uint8(low)])
        left = left[wanted[-1] + 1 :] if len(values) == count else left[:0]
    return values, left


def constant_inputs(
    example_shape: Sequence[int], value_range: tuple[float, float], dtype: Any
) -> np.ndarray:
    """Inputs [K, ...] all values of which are equal: one for each whole number, else 256 levels."""
    low, high = value_range
    if np.issubdtype(dtype, np.integer):
        levels = np.arange(int(low), int(high) + 1, dtype=dtype)
    else:
        levels = np.linspace(low, high, _NUM_LEVELS, dtype=dtype)
    levels = levels.reshape(-1, *(1 for _ in example_shape))
    return np.broadcast_to(levels, (len(levels), *example_shape)).copy()


def check_same_shape(name: str, shape: Sequence[int], input_shape: Sequence[int]) -> None:
    """Refuses a set whose images have another shape.

    Raises:
        UserError: as said.
    """
    if tuple(shape) != tuple(input_shape):
        raise UserError(
            f"--datasets={name} has examples of shape {tuple(shape)}, the ensemble "
            f"takes {tuple(input_shape)}; leave it out"
        )
