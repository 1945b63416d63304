"""The user's own data: arrays and npz files, checked before they are used.

Arrays of a program, an npz file or a folder of npy files have these names:

* `inputs` and `labels`: one pool of examples, to be split; or
* `train_inputs` and `train_labels`, and any of `validation_*`, `calibration_*` and `test_*`: splits
  as given;
* optionally `class_names`: one name per class, in the order of the labels;
* `targets` in place of `labels` where they are real numbers, for regression;
* optionally `sample_weight`: how much each example of the pool, or of `train`, counts in the loss.

Arrays may be memory maps that are larger than the memory: inputs are looked at in blocks, and are
brought to their type when they are read. Labels fit in memory.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.image_form import is_channels_first
from ensemble.data.labels import as_plain, classes
from ensemble.data.source import Examples, Parts, Source, Stored, blocks, slices
from ensemble.data.splitting import POOL
from ensemble.errors import InputError, in_one_line
from ensemble.notes import note
from ensemble.rounding import note_rounding
from ensemble.storage.files import is_remote
from ensemble.storage.memory import memory_bytes

WEIGHTS = "sample_weight"


def local_path(path: str) -> Path:
    """A path as a user gives it.

    Raises:
        InputError: it is not on a disk.
    """
    if is_remote(path):
        raise InputError(
            f"{path} is not on a disk, from which data are read: mount the bucket, such as by "
            "gcsfuse, and give the folder that it is mounted on, or copy the data to a disk"
        )
    return Path(os.path.expanduser(path))  # An unknown user stays: there is no such file.


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns what readers of files raise into one line.

    Raises:
        InputError: as said.
    """
    try:
        yield
    except InputError:
        raise
    # Arrow's errors are of many types.
    except (OSError, ValueError, TypeError, LookupError, NotImplementedError, csv.Error) as error:
        raise InputError(
            f"{what} cannot be read: {in_one_line(error, 200)}; correct it, or its path"
        ) from error


def check_size(inputs: Iterable[Any], name: str) -> None:
    """Refuses images that are too large to be decoded all at once.

    Args:
        inputs: Of each part, of which encoded images count.
        name: Name of the data, for messages.

    Raises:
        InputError: They are too large.
    """
    size = sum(math.prod(x.shape) for x in inputs if getattr(x, "is_encoded", False))
    limit = max_data_bytes()
    if size > limit:
        raise InputError(
            f"{name} takes {size:,} bytes of memory, more than the {limit:,} that are kept in "
            "memory: set config.resize to something smaller, or write them as records by "
            "ensemble convert, which are read in batches"
        )


def max_data_bytes() -> int:
    """What one data set may take: while it is checked and split there are some copies."""
    return memory_bytes() // 4


def _title(name: str, part: str, array: str) -> str:
    return f"{name}: {array}" if part == POOL else f"{name}: {part}_{array}"


def check_arrays(given: Parts, name: str, stays_on_disk: bool = False) -> Parts:
    """Checks arrays, and brings them to the types in which they are kept.

    Whole numbers that all fit 0..255 are kept as uint8, every other number as float32; `[N, H, W]`
    becomes `[N, H, W, 1]`, and `[N, C, H, W]` that can be nothing else `[N, H, W, C]`.

    Args:
        given: Arrays.
        name: Name of the data, for messages.
        stays_on_disk: Whether inputs are maps of files, which are read when they are used.

    Returns:
        Inputs `[N, F]` or `[N, H, W, C]`, uint8 or float32; the rest as of `check_targets`.

    Raises:
        InputError: An array cannot be used.
    """
    arrays = {
        part: _numeric(x, _title(name, part, "inputs")) for part, (x, _) in given.parts.items()
    }
    # Bytes are not looked at one by one.
    is_uint8 = all(
        one.dtype == np.uint8 or (one.dtype.kind in "bui" and one.min() >= 0 and one.max() <= 255)
        for one in arrays.values()
    )
    dtype = np.dtype(np.uint8 if is_uint8 else np.float32)
    shape = next(iter(arrays.values())).shape[1:]
    parts = {}
    for part, x in arrays.items():
        what = _title(name, part, "inputs")
        if x.ndim not in (2, 3, 4) or x.shape[1:] != shape:
            raise InputError(
                f"{what} has shape {x.shape}; inputs are feature vectors [N, F] or images "
                "[N, H, W] or [N, H, W, C], of one shape in all splits"
            )
        if not is_uint8:
            _check_finite(x, what)
        if x.ndim == 3:
            x = x[..., None]
        if is_channels_first(shape):
            x = np.moveaxis(x, 1, -1)
        kept: Any = (
            Stored(np.arange(len(x)), x.shape[1:], dtype, x.__getitem__)
            if stays_on_disk
            else x.astype(dtype, copy=False)
        )
        parts[part] = Examples(kept, given.parts[part].targets)
    if is_channels_first(shape):
        note(
            f"{name}: inputs of shape {shape} are taken for images [N, C, H, W], and turned to "
            "[N, H, W, C]; if axis 1 is their height, swap it with the width."
        )
    return check_targets(replace(given, parts=parts), name)


def check_targets(given: Parts, name: str) -> Parts:
    """Checks targets and weights, and brings them to the types in which they are kept.

    Args:
        given: Examples, of whose inputs only the number counts.
        name: Name of the data, for messages.

    Returns:
        Targets int32 `[N]` of classes, else float32 `[N]` or `[N, D]`; names of the classes, and
        weights float32 `[N]` of mean 1.

    Raises:
        InputError: Targets or weights cannot be used.
    """
    class_names = None
    values = {_title(name, part, given.kind): y for part, (_, y) in given.parts.items()}
    if given.kind == "labels":
        values, class_names = classes(values, given.class_names, name)
    else:
        values = {what: _check_numbers(one, what) for what, one in values.items()}
    parts = {}
    for (part, (x, _)), (what, y) in zip(given.parts.items(), values.items(), strict=True):
        if len(x) != len(y):
            raise InputError(f"{what} are {len(y)} of {len(x)} examples; each needs one")
        parts[part] = Examples(x, y)
    weights = given.weights
    if weights is not None:
        weights = _numeric(weights, f"{name}: {WEIGHTS}")
        number = len(next(iter(parts.values())).targets)
        if weights.shape != (number,) or not 0 < weights.min() <= weights.max() < np.inf:
            raise InputError(
                f"{name}: {WEIGHTS} of shape {weights.shape} begins at {weights.min()}; give a "
                f"positive, finite weight for each of the {number} examples to learn, and leave "
                "out examples that are not to count"
            )
        weights = (weights / weights.mean()).astype(np.float32)
    return replace(given, parts=parts, class_names=class_names, weights=weights)


def _numeric(values, what: str) -> NDArray:
    """Values as a real-valued array that is not empty.

    Raises:
        InputError: They are none.
    """
    array = as_plain(values, what)
    if array.dtype.kind not in "buif" or not array.size or not array.ndim:
        raise InputError(
            f"{what} has dtype {array.dtype} and shape {array.shape}; give an array of numbers "
            "that is not empty: convert numbers by astype(float), texts of inputs by "
            "pandas.get_dummies, and what is sparse by its toarray()"
        )
    return array


def _check_numbers(values, what: str) -> NDArray:
    """Real-valued targets, float32 `[N]`, or several `[N, D]`."""
    targets = _numeric(values, what)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim > 2:
        raise InputError(
            f"{what} has shape {targets.shape}; targets are [N], one number per example, or [N, D]"
        )
    _check_finite(targets, what)
    return targets.astype(np.float32)


def _check_finite(array: NDArray, what: str) -> None:
    """Refuses numbers that are not finite in float32, and notes it if it rounds them too much."""
    for here in slices(len(array), array.shape[1:]):
        block = array[here]
        with np.errstate(over="ignore"):
            is_bad = ~np.isfinite(block.astype(np.float32, copy=False))
        if is_bad.any():
            where = np.argwhere(is_bad)[0]
            raise InputError(
                f"{what} holds {block[tuple(where)]} in example {here.start + where[0]}; every "
                "value must be finite in float32: remove or replace it"
            )
    note_rounding(array, what)


_LARGE_POSITIVE = 2
_LARGE = 20
"""Images of positive numbers to above the one, or of any numbers beyond the other, are not
normalised, and are divided by the largest."""


def shift_and_scale(source: Source) -> tuple[NDArray, NDArray]:
    """Returns what normalises own data, from its training inputs, which are read in blocks.

    Returns:
        float32: for feature vectors their mean and inverse standard deviation `[F]` (1 where a
        feature is constant); for uint8 images, and float images far beyond 0..1, 0 and what makes
        the largest training value 1; other float images stay as they are, 0 and 1.
    """
    if len(source.input_shape) == 1:
        number = source.sizes["train"]
        first = source.read("train", slice(1)).inputs
        total, squares, varies = np.zeros((3, *source.input_shape))
        for x, _ in blocks(source, "train"):
            total += x.sum(axis=0, dtype=np.float64)
            varies += (x != first).any(axis=0)
        shift = total / number
        for x, _ in blocks(source, "train"):
            squares += np.square(x - shift).sum(axis=0)
        deviation = np.where(varies > 0, np.sqrt(squares / number), 1)
        return np.asarray(shift, np.float32), np.asarray(1 / deviation, np.float32)
    low, high = source.value_range("train")
    largest = max(-low, high)
    is_large = (low >= 0 and high > _LARGE_POSITIVE) or largest > _LARGE
    if source.input_dtype == np.uint8:
        largest = max(1, high)
    elif not is_large:
        largest = 1
    return np.zeros((), np.float32), np.asarray(1 / largest, np.float32)
