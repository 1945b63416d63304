"""Shifted images: five kinds, five severities each, the same pixels in every process.

Severities are in `SHIFTS`, in units without a scale, so that they suit 8x8, 28x28 and 32x32 images:

| shift | 1 | 2 | 3 | 4 | 5 | unit |
|---|---|---|---|---|---|---|
| rotation | 10 | 20 | 30 | 40 | 50 | degrees, to either side |
| translation | 1/28 | 2/28 | 3/28 | 4/28 | 5/28 | of the image's side, along either axis |
| noise | 0.08 | 0.12 | 0.18 | 0.26 | 0.38 | standard deviation, of the value range |
| blur | 0.02 | 0.04 | 0.06 | 0.08 | 0.10 | standard deviation, of the image's side |
| contrast | 0.75 | 0.5 | 0.4 | 0.3 | 0.15 | of the contrast is kept |

Ovadia et al. 2019 (arXiv:1906.02530) rotate MNIST by 15 to 180 degrees and roll it by 2 to 26
pixels. From about 60 degrees or 6 pixels on, a small network that did not train on such images is
not far from chance, so the steps here are finer and end before. What comes in from outside is the
low end of the value range, whatever the images: so what leaves does not come back opposite, as in
their rolling, and no edge is smeared into stripes. Noise is as in ImageNet-C and contrast as in
CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv:1903.12261, and their code). Their blur was made
for photographs, 0.03 of the side at most, and hardly touches digits: this one goes on further.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import ive

from ensemble.errors import UserError
from ensemble.source import Inputs

_CHUNK_VALUES = 1 << 20  # Few enough that the temporaries stay in the processor's caches.

Floats = NDArray[np.float32]


class Shift(NamedTuple):
    """One kind of shift.

    Attributes:
        amounts: of the severities 1 to 5.
        unit: what an amount is, as text.
    """

    amounts: tuple[float, float, float, float, float]
    unit: str


SHIFTS: Mapping[str, Shift] = MappingProxyType(
    {
        "rotation": Shift((10, 20, 30, 40, 50), "degrees, to either side"),
        "translation": Shift(
            (1 / 28, 2 / 28, 3 / 28, 4 / 28, 5 / 28), "of the image's side, along either axis"
        ),
        "noise": Shift(
            (0.08, 0.12, 0.18, 0.26, 0.38), "standard deviation, as a share of the value range"
        ),
        "blur": Shift(
            (0.02, 0.04, 0.06, 0.08, 0.10), "standard deviation, as a share of the image's side"
        ),
        "contrast": Shift((0.75, 0.5, 0.4, 0.3, 0.15), "share of the contrast that is kept"),
    }
)


def shift_images(
    images: np.ndarray,
    name: str,
    severity: int,
    *,
    value_range: tuple[float, float],
    seed: int = 0,
) -> np.ndarray:
    """Shifts images, as a pure function of the arguments.

    Directions and noise are drawn by a Philox generator seeded with (seed, name): image n gets the
    same ones however many follow it, and at every severity, so that severities differ by nothing
    else. (NumPy may change what its generators draw, but seldom does: NEP 19.)

    Args:
        images: `[N, H, W, C]`, uint8 or float32.
        name: one of `SHIFTS`.
        severity: 1 to 5.
        value_range: (low, high) of the data set, such as (0, 16) for digits: the training images'.
            The result is clipped to it.
        seed: of directions and noise.

    Returns:
        `[N, H, W, C]`, the dtype of `images`; uint8 values are rounded.

    Raises:
        UserError: the images are none, the name or the severity is unknown, the range is empty or
            beyond uint8's, or the seed is negative.
    """
    _check(images, name, severity, value_range, seed)
    shifted, done = np.empty_like(images), 0
    for piece in shifted_pieces(images, name, severity, value_range=value_range, seed=seed):
        shifted[done : done + len(piece)] = piece
        done += len(piece)
    return shifted


def shifted_pieces(
    images: Inputs,
    name: str,
    severity: int,
    *,
    value_range: tuple[float, float],
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """What `shift_images` returns, in pieces: images are read as they are shifted.

    Args:
        images: `[N, H, W, C]`, uint8 or float32.
        name: as of `shift_images`.
        severity: likewise.
        value_range: likewise.
        seed: likewise.

    Raises:
        UserError: as `shift_images`.
    """
    first = images[:1]
    _check(first, name, severity, value_range, seed)
    amount = SHIFTS[name].amounts[int(severity) - 1]
    low, high = map(float, value_range)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *name.encode()])))
    chunk_size = max(1, _CHUNK_VALUES // max(1, np.prod(first.shape[1:], dtype=int)))
    for start in range(0, len(images), chunk_size):
        chunk = images[start : start + chunk_size].astype(np.float32)
        if name == "rotation":
            chunk = _rotate(chunk, amount, low, rng)
        elif name == "translation":
            chunk = _translate(chunk, amount, low, rng)
        elif name == "noise":
            chunk = _add_noise(chunk, amount * (high - low), rng)
        elif name == "blur":
            chunk = _blur(chunk, amount)
        else:
            chunk = _reduce_contrast(chunk, amount)
        chunk = np.clip(chunk, low, high)
        yield (np.rint(chunk) if first.dtype == np.uint8 else chunk).astype(first.dtype, copy=False)


def _check(
    images: np.ndarray, name: str, severity: int, value_range: tuple[float, float], seed: int
) -> None:
    """Refuses what cannot be shifted; `shift_images` says what."""
    if name not in SHIFTS:
        raise UserError(f"shift {name!r} is unknown; choose one of {', '.join(SHIFTS)}")
    if severity not in range(1, 6):
        raise UserError(f"severity={severity} is unknown; use a whole number from 1 to 5")
    if images.ndim != 4:
        raise UserError(
            f"inputs of shape {images.shape} cannot be shifted by {name}: only images [N, H, W, C] "
            "can; leave the shifts out"
        )
    if images.dtype not in (np.uint8, np.float32):
        raise UserError(f"images of dtype {images.dtype} must be uint8 or float32; convert them")
    low, high = value_range
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise UserError(
            f"value_range=({low}, {high}) must be finite, the first less than the second; use the "
            "least and the largest value of the training images"
        )
    if images.dtype == np.uint8 and not 0 <= low < high <= 255:
        raise UserError(f"value_range=({low}, {high}) must be within uint8's 0 to 255; narrow it")
    if seed < 0:
        raise UserError(f"seed={seed} must not be negative; use any whole number from 0")


def _rotate(images: Floats, degrees: float, low: float, rng: np.random.Generator) -> Floats:
    """Rotates about the middle, each image to a side that is drawn."""
    side = rng.integers(2, size=len(images))
    height, width = images.shape[1:3]
    sources = [_rotated_sources(height, width, sign * degrees) for sign in (1, -1)]
    return _resample(images, side, sources, low)


def _translate(images: Floats, share: float, low: float, rng: np.random.Generator) -> Floats:
    """Moves right, down, left or up, as is drawn for each image.

    Parts of a pixel are interpolated: rounded, the steps of an 8x8 image would be 0, 1, 1, 1 and 1
    pixels. Along the axes, so that the steps of a 28x28 image are whole and nothing blurs.
    """
    direction = rng.integers(4, size=len(images))
    height, width = images.shape[1:3]
    down, right = share * height, share * width
    sources = [
        _translated_sources(height, width, *step)
        for step in ((0.0, right), (down, 0.0), (0.0, -right), (-down, 0.0))
    ]
    return _resample(images, direction, sources, low)


def _add_noise(images: Floats, deviation: float, rng: np.random.Generator) -> Floats:
    """Adds independent Gaussian noise to every value."""
    return images + np.float32(deviation) * rng.standard_normal(images.shape, np.float32)


def _blur(images: Floats, share: float) -> Floats:
    """Blurs by a Gaussian, mirrored at the edges, which keeps the mean of every image.

    The kernel is the discrete Gaussian exp(-t) I_n(t), t = sigma^2, of Lindeberg 1990 ("Scale-space
    for discrete signals"). Its standard deviation is sigma even far below a pixel, as in 8x8
    images, where samples of the continuous Gaussian would change nothing.
    """
    for axis in (1, 2):
        sigma = share * images.shape[axis]
        radius = int(np.ceil(4 * sigma)) + 1
        kernel = ive(np.abs(np.arange(-radius, radius + 1)), sigma**2)
        images = scipy.ndimage.correlate1d(images, kernel / kernel.sum(), axis=axis, mode="reflect")
    return images


def _reduce_contrast(images: Floats, kept: float) -> Floats:
    """Draws every value towards the mean of its image and channel."""
    # In float64 the mean does not depend on the order of the sum, which may depend on N.
    means = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    return means + np.float32(kept) * (images - means)


def _rotated_sources(height: int, width: int, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Finds where each pixel of an image comes from that is rotated counterclockwise.

    Returns:
        rows and columns, `[H, W]` each, not whole and partly outside of the image.
    """
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    down = np.arange(height)[:, None] - middle_row
    right = np.arange(width) - middle_column
    return middle_row + right * sin + down * cos, middle_column + right * cos - down * sin


def _translated_sources(
    height: int, width: int, down: float, right: float
) -> tuple[np.ndarray, np.ndarray]:
    """Finds where each pixel of an image comes from that is moved, as in `_rotated_sources`."""
    rows, columns = np.mgrid[:height, :width]
    return rows - down, columns - right


def _resample(
    images: Floats,
    choice: np.ndarray,
    sources: Sequence[tuple[np.ndarray, np.ndarray]],
    low: float,
) -> Floats:
    """Resamples each image by its choice of sources, linearly in both directions.

    All images of one choice are done at once, with exact weights and any number of channels;
    `cv2.warpAffine` takes them one by one, rounds positions and fills four channels at most.

    Args:
        images: `[N, H, W, C]`.
        choice: `[N]`, indices into `sources`.
        sources: rows and columns, `[H, W]` each.
        low: the value of everything outside.
    """
    _, height, width, channels = images.shape
    result = np.empty_like(images)
    for number, (rows, columns) in enumerate(sources):
        indices, weights = _neighbours(rows, columns)
        which = np.flatnonzero(choice == number)
        pixels = images[which].reshape(len(which), height * width, channels)
        moved = np.zeros_like(pixels)
        for index, weight in zip(indices, weights, strict=True):
            moved += np.take(pixels, index, axis=1) * weight[:, None]
        moved += (low * (1 - weights.sum(axis=0)))[:, None].astype(np.float32)
        result[which] = moved.reshape(-1, height, width, channels)
    return result


def _neighbours(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, Floats]:
    """The four pixels around each position, and the weights of linear interpolation.

    Args:
        rows: `[H, W]`, of positions.
        columns: `[H, W]`, likewise.

    Returns:
        indices into the flat image and weights, `[4, H * W]` each; a pixel outside of the image
        weighs 0.
    """
    height, width = rows.shape
    rows, columns = rows.round(6).ravel(), columns.round(6).ravel()  # Whole pixels stay whole.
    top, left = np.floor(rows), np.floor(columns)
    indices, weights = [], []
    for down in (0, 1):
        for right in (0, 1):
            row, column = top + down, left + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            weight = (1 - abs(rows - row)) * (1 - abs(columns - column))
            indices.append(np.where(inside, row * width + column, 0).astype(np.intp))
            weights.append(np.where(inside, weight, 0))
    return np.array(indices), np.array(weights, np.float32)
