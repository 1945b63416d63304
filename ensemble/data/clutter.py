"""Digits in clutter: scikit-learn's digits, turned, resized and put on a busy background.

Every image shows one whole bright digit, which is its label. Pieces of other digits lie around it,
there is noise, and in a quarter of the images a second, darker digit overlaps the first. The closer
the brightness of the two, the less the image says which of them is meant.

Of `clutter` every image draws its digit from all of them, in all splits: images are independent,
and scores are about more of the same. Of `grouped_clutter` each digit is in one split and in
several images, which are alike: they are a group.
"""

from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.data.batches import CLUTTER_STREAM, seeded_generator
from ensemble.data.dataset import make_dataset
from ensemble.data.digits import CLASS_NAMES, read_digits, split_digits
from ensemble.data.source import Examples, Request, Source, Strata

SIZES = {"train": 3_600, "validation": 600, "calibration": 1_000, "test": 1_500}
"""Images of `clutter`."""
COPIES = {"train": 3, "validation": 4, "calibration": 4, "test": 5}
"""Images of each digit of `grouped_clutter`."""
SIDE = 20
"""Rows and columns of an image."""
_NUM_PIECES = 3  # Of other digits, in every image.
_PAIRED = 0.25  # Share of the images with a second digit.
_ENLARGED = 4  # Digits are enlarged by a cubic spline first, then moved bilinearly.


def load_clutter(name: str, request: Request) -> Source:
    """Makes a data set of independent images, or of a few of each digit, which are a group."""
    is_grouped = name == "grouped_clutter"
    every = read_digits()
    splits = {}
    shown_in = {}
    num_digits = 0
    for index, (split, own) in enumerate(split_digits().items()):
        rng = seeded_generator(CLUTTER_STREAM, 1 - is_grouped, index)
        inputs, labels = own if is_grouped else every
        number = len(labels)
        shown = (
            np.tile(np.arange(number), COPIES[split])
            if is_grouped
            else rng.integers(0, number, SIZES[split])
        )
        images = render(inputs[..., 0], shown, rng)
        splits[split] = Examples(images, labels[shown])
        shown_in[split] = Examples(images, num_digits + shown)
        num_digits += number
    made, digits = (
        make_dataset(name, one, CLASS_NAMES, 1 / 255, request.hold_out)
        for one in (splits, shown_in)
    )
    if not is_grouped:
        return made
    groups = {split: Strata("digit", "group", digits.targets(split)) for split in made.sizes}
    return replace(made, groups=groups)


def render(digits: NDArray, shown: NDArray, rng: np.random.Generator) -> NDArray:
    """Puts a digit into each image; clutter is made of all of the digits.

    Args:
        digits: `[N, 8, 8]`, 0..16.
        shown: `[I]`, which digit each image shows.
        rng: draws places, sizes, angles, brightness, clutter and noise.

    Returns:
        `[I, SIDE, SIDE, 1]`, 0..255.
    """
    sources = _enlarge(digits)
    count = len(shown)
    each = (count, 1, 1)
    images = np.zeros((count, SIDE, SIDE))
    for _ in range(_NUM_PIECES):
        piece = _place(sources[rng.integers(0, len(digits), count)], 8, rng)
        images = np.maximum(images, _window(piece, rng) * rng.uniform(0.4, 1, each))
    # The second digit is from 0.5 to 1 times as bright as the first.
    second = _place(sources[rng.integers(0, len(digits), count)], 4, rng)
    second *= rng.uniform(0.5, 1, each) * (rng.random(each) < _PAIRED)
    first = _place(sources[shown], 2.5, rng)
    images = np.maximum(images, np.maximum(first, second))
    images = images * rng.uniform(0.6, 1, each) + rng.normal(0, 0.1, images.shape)
    return np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8)[..., None]


def _enlarge(digits: NDArray) -> NDArray:
    """Digits `[N, 8, 8]` as smooth pictures of 0..1, with a border of zeros."""
    padded = np.pad(digits / 16.0, ((0, 0), (2, 2), (2, 2)))
    return np.clip(scipy.ndimage.zoom(padded, (1, _ENLARGED, _ENLARGED), order=3), 0, 1)


def _place(sources: NDArray, reach: float, rng: np.random.Generator) -> NDArray:
    """Turns by up to 30 degrees, resizes to 12 to 17 pixels, and moves from the centre."""
    count, side, _ = sources.shape
    angle = rng.uniform(-np.pi / 6, np.pi / 6, (count, 1, 1))
    scale = 8 * _ENLARGED / rng.uniform(12, 17, (count, 1, 1))  # Source pixels per pixel.
    centre = (SIDE - 1) / 2 + rng.uniform(-reach, reach, (2, count, 1, 1))
    row, column = np.mgrid[:SIDE, :SIDE][:, None] - centre
    middle = (side - 1) / 2
    y = scale * (np.cos(angle) * row - np.sin(angle) * column) + middle
    x = scale * (np.sin(angle) * row + np.cos(angle) * column) + middle
    places = np.broadcast_arrays(np.arange(count)[:, None, None], y, x)
    return scipy.ndimage.map_coordinates(sources, places, order=1, mode="nearest")


def _window(images: NDArray, rng: np.random.Generator) -> NDArray:
    """Keeps a random square of 6 to 9 pixels of each image, which leaves a piece of a digit."""
    size = rng.integers(6, 10, (len(images), 1))
    start = rng.integers(0, SIDE - 6, (2, len(images), 1))
    inside = (np.arange(SIDE) >= start) & (np.arange(SIDE) < start + size)
    return images * (inside[0][:, :, None] & inside[1][:, None, :])
