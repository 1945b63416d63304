"""Shifted inputs: each kind at five severities, the same values in every process.

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

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy import ndimage
from scipy.special import ive

from ensemble.data.source import Inputs, Source, blocks

IMAGES = {
    "rotation": (10, 20, 30, 40, 50),
    "translation": (1 / 28, 2 / 28, 3 / 28, 4 / 28, 5 / 28),
    "noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "blur": (0.02, 0.04, 0.06, 0.08, 0.10),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
}
NOISY, MISSING = "noisy columns", "missing values"
TABLES = {NOISY: (0.1, 0.2, 0.4, 0.8, 1.6), MISSING: (0.1, 0.2, 0.4, 0.6, 0.8)}
SEVERITIES = (1, 2, 3, 4, 5)
MIDDLE = 3
"""The severity that findings are about."""
_PIECE = 1 << 20  # Values: few enough for the processor's caches.


def _rng(kind: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([0, *kind.encode()])))


# Images.


def shifted_images(
    images: Inputs, value_range: tuple[float, float], kind: str, severity: int
) -> Iterator[np.ndarray]:
    """Shifts images piece by piece, as a pure function of the arguments.

    Args:
        images: [N, H, W, C], uint8 or float32.
        value_range: least and largest value of the training images.
        kind: of `IMAGES`.
        severity: 1 to 5.
    """
    rng, dtype = _rng(kind), images[:1].dtype
    size = max(1, _PIECE // max(1, images[:1].size))
    for start in range(0, len(images), size):
        piece = images[start : start + size].astype(np.float32)
        moved = np.clip(_shifted(piece, kind, severity, value_range, rng), *value_range)
        yield (np.rint(moved) if dtype == np.uint8 else moved).astype(dtype)


def _shifted(
    images: np.ndarray,
    kind: str,
    severity: int,
    value_range: tuple[float, float],
    rng: np.random.Generator,
) -> np.ndarray:
    amount, (low, high) = IMAGES[kind][severity - 1], value_range
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
    pixels = np.indices(images.shape[1:3]).reshape(2, -1).T
    if kind == "rotation":
        middle, (cos, sin) = (sides - 1) / 2, (f(np.deg2rad(amount)) for f in (np.cos, np.sin))
        turn = np.array([[cos, sin], [-sin, cos]])
        places = [(pixels - middle) @ one + middle for one in (turn.T, turn)]
    else:
        steps = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]]) * amount * sides
        places = [pixels - step for step in steps]
    result, direction = np.empty_like(images), rng.integers(len(places), size=len(images))
    for number, one in enumerate(places):
        result[direction == number] = _resampled(images[direction == number], one, low)
    return result


def _resampled(images: np.ndarray, places: np.ndarray, low: float) -> np.ndarray:
    """Values at places [H * W, 2] in pixels, linear between pixels and `low` outside."""
    number, height, width, channels = images.shape
    frame = ((0, 0), (1, 2), (1, 2), (0, 0))
    framed = np.pad(images, frame, constant_values=low)
    framed = framed.reshape(number, (height + 3) * (width + 3), channels)
    places = np.clip(places.round(6) + 1, 0, [height + 1, width + 1])
    corner = np.floor(places)
    moved = np.zeros((number, len(places), channels), np.float32)
    for step in np.ndindex(2, 2):
        at = corner + step
        weight = np.prod(1 - np.abs(places - at), axis=-1).astype(np.float32)
        index = (at @ [width + 3, 1]).astype(np.intp)
        moved += np.take(framed, index, axis=1) * weight[:, None]
    return moved.reshape(images.shape)


# Tables.


class Columns(NamedTuple):
    """Statistics of the training rows of a table with inputs [F].

    Attributes:
        mean: of known values.
        deviation: of known values.
        low: least value.
        high: largest value.
        column: number of the table's column that each input comes from.
        is_number: whether an input is a number, not part of a category or a flag.
        flag: the input that is 1 if this one's value is missing; -1 if there is none.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    column: np.ndarray
    is_number: np.ndarray
    flag: np.ndarray

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Whether each value is not missing, bool [N, F]."""
        found, flagged = np.ones(rows.shape, bool), np.flatnonzero(self.flag >= 0)
        found[:, flagged] = rows[:, self.flag[flagged]] == 0
        return found

    @property
    def kinds(self) -> Mapping[str, tuple[float, ...]]:
        """The shifts that such a table can have."""
        return TABLES if self.is_number.any() else {MISSING: TABLES[MISSING]}


def columns_of(source: Source) -> Columns:
    """Reads the training rows of a table."""
    number = source.input_shape[0]
    features = [(i, True, -1) for i in range(number)]
    if source.table is not None:
        features = [*source.table.features]
    found = Columns(*np.zeros((4, number)), *map(np.array, zip(*features, strict=True)))
    first = source.read("train", slice(0, 1)).inputs[0].astype(np.float64)
    sums, low, high = np.zeros((3, number)), np.inf, -np.inf
    for block in blocks(source, "train"):
        values = block.inputs.astype(np.float64) - first  # Near zero, for the sum of the squares.
        known = found.known(block.inputs)
        sums += [np.sum(values**power * known, axis=0) for power in range(3)]
        low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
    mean = sums[1] / sums[0]
    deviation = np.sqrt(np.maximum(sums[2] / sums[0] - mean**2, 0))
    ends = {"low": first + low, "high": first + high}
    return found._replace(mean=first + mean, deviation=deviation, **ends)


def shifted_rows(rows: np.ndarray, columns: Columns, kind: str, severity: int) -> np.ndarray:
    """Shifts rows [N, F] of a table, as a pure function of the arguments.

    Inputs of one column, as those of a category, are missing together. Noise is added to known
    numbers only.

    Args:
        rows: [N, F].
        columns: of the training rows.
        kind: of `TABLES`.
        severity: 1 to 5.
    """
    amount, rng, x = TABLES[kind][severity - 1], _rng(kind), rows.astype(np.float64)
    if kind == MISSING:
        is_missing = rng.random((len(x), int(columns.column.max()) + 1)) < amount
        x = np.where(is_missing[:, columns.column], columns.mean, x)
    else:
        moves = columns.known(rows) & columns.is_number
        x = x + moves * amount * columns.deviation * rng.standard_normal(x.shape)
    return x.astype(rows.dtype)


# Inputs unlike the training data.


def uniform_noise(
    shape: tuple[int, ...], value_range: tuple[float, float], dtype: np.dtype
) -> Iterator[np.ndarray]:
    """Inputs [N, ...] whose values are drawn evenly from the training range, in pieces."""
    rng, (low, high) = _rng("uniform"), value_range
    size = max(1, _PIECE // int(np.prod(shape[1:], dtype=int)))
    for start in range(0, shape[0], size):
        share = rng.random((min(size, shape[0] - start), *shape[1:]))
        is_whole = dtype.kind in "iu"
        values = low + (high - low + is_whole) * share
        yield (np.floor(values) if is_whole else values).astype(dtype)


def constant_inputs(
    shape: tuple[int, ...], value_range: tuple[float, float], dtype: np.dtype
) -> np.ndarray:
    """Inputs [K, ...] of one value each: every whole number of the range, else 256 levels."""
    low, high = value_range
    levels = np.arange(low, high + 1) if dtype.kind in "iu" else np.linspace(low, high, 256)
    levels = levels.astype(dtype).reshape(-1, *(1 for _ in shape))
    return np.broadcast_to(levels, (len(levels), *shape))


def box(columns: Columns, number: int, dtype: np.dtype, margin: float = 0.0) -> np.ndarray:
    """Rows [N, F] whose columns are drawn evenly and independently.

    Args:
        columns: of the training rows.
        number: N.
        dtype: of the rows.
        margin: 0 draws from the training range; more draws from that many ranges beyond its ends.
    """
    rng = _rng("outside" if margin else "box")
    share = rng.random((number, len(columns.low)))
    if margin:
        is_above = rng.integers(2, size=share.shape) == 1
        share = np.where(is_above, 1 + margin * share, -margin * share)
    return (columns.low + share * (columns.high - columns.low)).astype(dtype)
