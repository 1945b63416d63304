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

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import ive

from ensemble.data.source import AnyInputs, Inputs, MadeInputs, Source, in_memory

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


def made_inputs(source: Source, name: str) -> dict[str, AnyInputs]:
    """Inputs of one of the names in `MADE`; empty if they do not suit such data.

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
    if name == CONSTANT:
        return {name: constant_inputs(source.input_shape, source.value_range("train"), dtype)}
    if name == UNIFORM or (name == SHIFT and source.has_pictures):
        ends: Any = source.value_range("train")
        kinds = IMAGES
        shifted = partial(shifted_images, source.splits["test"].inputs, ends)
    elif is_table(source):
        columns = columns_of(source)
        ends = (columns.low, columns.high)
        kinds = TABLES
        shifted = partial(shifted_rows, in_memory(source, "test").inputs, columns)
    else:
        return {}
    if name != SHIFT:
        shape = (number, *source.input_shape)
        return {name: MadeInputs(number, partial(drawn, name, shape, dtype, *ends))}
    return {
        f"{SHIFT}/{kind}/{severity}": MadeInputs(number, partial(shifted, kind, severity))
        for kind in kinds
        for severity in SEVERITIES
    }


def _rng(kind: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([0, *kind.encode()])))


def _pieces(shape: tuple[int, ...]) -> list[slice]:
    """Slices of inputs [N, ...]."""
    size = max(1, _PIECE // int(np.prod(shape[1:], dtype=int)))
    return [slice(start, min(start + size, shape[0])) for start in range(0, shape[0], size)]


# Images.


def shifted_images(
    images: Inputs, value_range: tuple[float, float], kind: str, severity: int
) -> Iterator[NDArray]:
    """Shifts images piece by piece, as a pure function of the arguments.

    Args:
        images: [N, H, W, C], uint8 or float32.
        value_range: least and largest value of the training images.
        kind: of `IMAGES`.
        severity: 1 to 5.
    """
    rng = _rng(kind)
    amount = IMAGES[kind][severity - 1]
    one = images[:1]
    for piece in _pieces((len(images), *one.shape[1:])):
        found = _shifted(images[piece].astype(np.float32), kind, amount, value_range, rng)
        found = np.clip(found, *value_range)
        yield (np.rint(found) if one.dtype == np.uint8 else found).astype(one.dtype)


def _shifted(
    images: NDArray,
    kind: str,
    amount: float,
    value_range: tuple[float, float],
    rng: np.random.Generator,
) -> NDArray:
    low, high = value_range
    sides = np.array(images.shape[1:3])
    if kind == "noise":
        noise = rng.standard_normal(images.shape, np.float32)
        return images + np.float32(amount * (high - low)) * noise
    if kind == "contrast":
        means = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
        return means + np.float32(amount) * (images - means)
    if kind == "blur":
        for axis, sigma in enumerate(amount * sides, 1):
            # The discrete Gaussian of Lindeberg 1990, whose deviation is right below a pixel, too.
            kernel = ive(np.abs(np.arange(-int(4 * sigma) - 2, int(4 * sigma) + 3)), sigma**2)
            images = ndimage.correlate1d(images, kernel / kernel.sum(), axis, mode="reflect")
        return images
    is_turned = kind == "rotation"
    moved = np.empty_like(images)
    ways = rng.integers(2 if is_turned else 4, size=len(images))
    for way in np.unique(ways):
        some = ways == way
        if is_turned:
            how: Any = {"reshape": False, "order": 1, "mode": "grid-constant", "cval": low}
            moved[some] = ndimage.rotate(images[some], amount * (1 - 2 * way), (1, 2), **how)
        else:
            axis = 2 - way % 2
            step = amount * sides[axis - 1] * (1 - 2 * (way // 2))
            places = np.arange(-int(abs(step)) - 1, int(abs(step)) + 2)
            kernel = np.maximum(0, 1 - np.abs(places + step))  # Linear between pixels.
            moved[some] = ndimage.correlate1d(images[some], kernel, axis, mode="constant", cval=low)
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


def columns_of(source: Source) -> Columns:
    """Reads the training rows of a table."""
    number = source.input_shape[0]
    column = np.arange(number)
    is_number = np.ones(number, bool)
    if source.table is not None:
        column, is_number = map(np.array, zip(*source.table.features, strict=True))
    rows = in_memory(source, "train").inputs.astype(np.float64)
    moments = (rows.mean(axis=0), rows.std(axis=0), rows.min(axis=0), rows.max(axis=0))
    return Columns(column, is_number, *moments)


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
    rng = _rng(kind)
    for piece in _pieces(rows.shape):
        x = rows[piece].astype(np.float64)
        if kind == MISSING:
            is_missing = rng.random((len(x), int(columns.column.max()) + 1)) < amount
            x = np.where(is_missing[:, columns.column], columns.mean, x)
        else:
            moves = columns.is_number * amount * columns.deviation
            x = x + moves * rng.standard_normal(x.shape)
        yield x.astype(rows.dtype)


# Inputs unlike the training data.


def drawn(
    name: str, shape: tuple[int, ...], dtype: np.dtype, low: Any, high: Any
) -> Iterator[NDArray]:
    """Inputs whose values are drawn evenly and independently, in pieces.

    Args:
        name: `outside` draws from beyond the ends, as far as they are apart; others between them.
        shape: (N, ...).
        dtype: of the inputs.
        low: end, a number or [F].
        high: end, a number or [F].
    """
    rng = _rng(name)
    is_whole = dtype.kind in "iu"
    for piece in _pieces(shape):
        share = rng.random((piece.stop - piece.start, *shape[1:]))
        if name == OUTSIDE:
            share = np.where(rng.integers(2, size=share.shape) == 1, 1 + share, -share)
        values = low + (high - low + is_whole) * share
        yield (np.floor(values) if is_whole else values).astype(dtype)


def constant_inputs(
    shape: tuple[int, ...], value_range: tuple[float, float], dtype: np.dtype
) -> NDArray:
    """Inputs [K, ...] of one value each: every whole number of the range, else 256 levels."""
    low, high = value_range
    levels = np.arange(low, high + 1) if dtype.kind in "iu" else np.linspace(low, high, 256)
    return np.multiply.outer(levels, np.ones(shape)).astype(dtype)
