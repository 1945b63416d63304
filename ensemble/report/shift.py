"""Inputs other than the test split: shifted at five severities, or made; in every process alike.

| kind | 1 | 2 | 3 | 4 | 5 | unit |
|---|---|---|---|---|---|---|
| rotation | 10 | 20 | 30 | 40 | 50 | degrees, to either side |
| translation | 1/28 | 2/28 | 3/28 | 4/28 | 5/28 | of the image's side, along either axis |
| noise | 0.08 | 0.12 | 0.18 | 0.26 | 0.38 | standard deviation, of the value range |
| blur | 0.02 | 0.04 | 0.06 | 0.08 | 0.10 | standard deviation, of the image's side |
| contrast | 0.75 | 0.5 | 0.4 | 0.3 | 0.15 | share of the contrast that is kept |
| noisy columns | 0.1 | 0.2 | 0.4 | 0.8 | 1.6 | standard deviation of noise, in the column's |
| missing values | 0.1 | 0.2 | 0.4 | 0.6 | 0.8 | share of values replaced by their column's mean |

After Ovadia et al. 2019 (arXiv:1906.02530) and ImageNet-C (Hendrycks and Dietterich 2019,
arXiv:1903.12261), in units without a scale, so that they suit 8x8 and 224x224 images. What comes in
from outside an image is the low end of the value range. Severities share their random draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import ive

from ensemble.data.source import MadeInputs, Source, in_memory
from ensemble.pytrees import ByName

IMAGES = {
    "rotation": (10, 20, 30, 40, 50),
    "translation": (1 / 28, 2 / 28, 3 / 28, 4 / 28, 5 / 28),
    "noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "blur": (0.02, 0.04, 0.06, 0.08, 0.10),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
}
NOISY = "noisy columns"
MISSING = "missing values"
TABLES = {NOISY: (0.1, 0.2, 0.4, 0.8, 1.6), MISSING: (0.1, 0.2, 0.4, 0.6, 0.8)}
SEVERITIES = (1, 2, 3, 4, 5)
MIDDLE = 3
"""The severity that findings are about."""
SHIFT, UNIFORM, CONSTANT, BOX, OUTSIDE = MADE = "shift", "uniform", "constant", "box", "outside"
"""Names of what `made_inputs` makes."""
_PIECE = 1 << 20  # Values: few enough for the processor's caches.


def is_table(source: Source) -> bool:
    """Whether inputs are rows of floating-point columns."""
    return len(source.input_shape) == 1 and source.input_dtype.kind == "f"


def made_inputs(source: Source, name: str) -> ByName:
    """Inputs of one of the names in `MADE`; empty if it is none, or does not suit such data.

    Args:
        source: Data of the run.
        name: `shift`: the test split, moved; `uniform` and `constant`: values drawn evenly from the
            training range, and inputs of one value each; of tables `box` and `outside`: columns
            drawn by themselves from their training range, and from as far beyond its ends.

    Returns:
        Inputs by name; those of `shift` have names such as `shift/rotation/3`.
    """
    number = source.sizes["test"]
    dtype = source.input_dtype
    if name in (UNIFORM, CONSTANT) or (name == SHIFT and source.has_pictures):
        ends: Any = source.value_range("train")
        kinds = IMAGES
        shifted = partial(shifted_images, source.splits["test"].inputs, ends)
    elif name in MADE and is_table(source):
        column = np.arange(*source.input_shape)
        is_number = np.ones(source.input_shape, bool)
        if source.table is not None:
            column, is_number = map(np.array, zip(*source.table.features, strict=True))
        rows = in_memory(source, "train").inputs.astype(np.float64)
        moments = (rows.mean(axis=0), rows.std(axis=0), rows.min(axis=0), rows.max(axis=0))
        columns = Columns(column, is_number, *moments)
        ends = (columns.low, columns.high)
        kinds = TABLES
        shifted = partial(shifted_rows, in_memory(source, "test").inputs, columns)
    else:
        return {}
    if name == CONSTANT:
        return {name: constant_inputs(source.input_shape, ends, dtype)}
    if name != SHIFT:
        shape = (number, *source.input_shape)
        return {name: MadeInputs(number, partial(drawn, name, shape, dtype, *ends))}
    return {
        f"{SHIFT}/{kind}/{severity}": MadeInputs(number, partial(shifted, kind, severity))
        for kind in kinds
        for severity in SEVERITIES
    }


def _pieces(kind: str, shape) -> Iterator[Any]:
    """A generator of random numbers and slices of inputs [N, ...], one after the other."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([0, *kind.encode()])))
    size = max(1, _PIECE // math.prod(shape[1:]))
    for start in range(0, shape[0], size):
        yield rng, slice(start, min(start + size, shape[0]))


# Images.


def shifted_images(images: Any, value_range: Any, kind: str, severity: int) -> Iterator[NDArray]:
    """Shifts images piece by piece, as a pure function of the arguments.

    Args:
        images: [N, H, W, C], uint8 or float32.
        value_range: least and largest value of the training images.
        kind: of `IMAGES`.
        severity: 1 to 5.
    """
    low, high = value_range
    amount = IMAGES[kind][severity - 1]
    dtype = images[:1].dtype
    for rng, piece in _pieces(kind, (len(images), *images[:1].shape[1:])):
        x = images[piece].astype(np.float32)
        if kind == "noise":
            x += np.float32(amount * (high - low)) * rng.standard_normal(x.shape, np.float32)
        elif kind == "contrast":
            means = x.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
            x = means + np.float32(amount) * (x - means)
        elif kind == "blur":
            for axis, side in enumerate(x.shape[1:3], 1):
                sigma = amount * side
                # The discrete Gaussian of Lindeberg 1990, whose deviation is right below a pixel.
                kernel = ive(np.abs(np.arange(-int(4 * sigma) - 2, int(4 * sigma) + 3)), sigma**2)
                x = ndimage.correlate1d(x, kernel / kernel.sum(), axis, mode="reflect")
        else:
            x = _turned(x, kind, amount, low, rng)
        x = np.clip(x, low, high)
        yield (np.rint(x) if dtype == np.uint8 else x).astype(dtype)


def _turned(x: NDArray, kind: str, amount: float, low: float, rng) -> NDArray:
    """Rotates or translates each image to a side that is drawn."""
    is_turned = kind == "rotation"
    moved = np.empty_like(x)
    ways = rng.integers(2 if is_turned else 4, size=len(x))
    for way in np.unique(ways):
        some = ways == way
        if is_turned:
            how: Any = {"reshape": False, "order": 1, "mode": "grid-constant", "cval": low}
            moved[some] = ndimage.rotate(x[some], amount * (1 - 2 * way), (1, 2), **how)
        else:
            axis = 2 - way % 2
            step = amount * x.shape[axis] * (1 - 2 * (way // 2))
            places = np.arange(-int(abs(step)) - 1, int(abs(step)) + 2)
            kernel = np.maximum(0, 1 - np.abs(places + step))  # Linear between pixels.
            moved[some] = ndimage.correlate1d(x[some], kernel, axis, mode="constant", cval=low)
    return moved


# Tables.


class Columns(NamedTuple):
    """Statistics of the training rows of a table with inputs [F].

    Attributes:
        column: number of the table's column that each input comes from.
        is_number: whether an input is a number, not part of a category or a flag.
        mean: of each input.
        deviation: of each input.
        low: least value.
        high: largest value.
    """

    column: NDArray
    is_number: NDArray
    mean: NDArray
    deviation: NDArray
    low: NDArray
    high: NDArray


def shifted_rows(rows: NDArray, columns: Columns, kind: str, severity: int) -> Iterator[NDArray]:
    """Shifts rows [N, F] of a table piece by piece, as a pure function of the arguments.

    Inputs of one column, as those of a category, are missing together. Noise is added to numbers
    only.

    Args:
        rows: [N, F].
        columns: of the training rows.
        kind: of `TABLES`.
        severity: 1 to 5.
    """
    amount = TABLES[kind][severity - 1]
    for rng, piece in _pieces(kind, rows.shape):
        x = rows[piece].astype(np.float64)
        if kind == MISSING:
            is_missing = rng.random((len(x), int(columns.column.max()) + 1)) < amount
            x = np.where(is_missing[:, columns.column], columns.mean, x)
        else:
            moves = columns.is_number * amount * columns.deviation
            x = x + moves * rng.standard_normal(x.shape)
        yield x.astype(rows.dtype)


# Inputs unlike the training data.


def drawn(name: str, shape: Any, dtype: np.dtype, low: Any, high: Any) -> Iterator[NDArray]:
    """Inputs whose values are drawn evenly and independently, in pieces.

    Args:
        name: `outside` draws from beyond the ends, as far as they are apart; others between them.
        shape: (N, ...).
        dtype: of the inputs.
        low: end, a number or [F].
        high: end, a number or [F].
    """
    is_whole = dtype.kind in "iu"
    for rng, piece in _pieces(name, shape):
        share = rng.random((piece.stop - piece.start, *shape[1:]))
        if name == OUTSIDE:
            share = np.where(rng.integers(2, size=share.shape) == 1, 1 + share, -share)
        values = low + (high - low + is_whole) * share
        yield (np.floor(values) if is_whole else values).astype(dtype)


def constant_inputs(shape: Any, value_range: Any, dtype: np.dtype) -> NDArray:
    """Inputs [K, ...] of one value each: every whole number of the range, else 256 levels."""
    low, high = value_range
    levels = np.arange(low, high + 1) if dtype.kind in "iu" else np.linspace(low, high, 256)
    return np.multiply.outer(levels, np.ones(shape)).astype(dtype)
