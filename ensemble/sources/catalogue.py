"""Data sets by name, a user's own among them, and how they are split.

Every data set is whole in host memory, uint8 wherever it can be, and split into train (fits
parameters), validation (chooses and stops), calibration (fits temperatures and thresholds) and test
(only scores). Normalisation happens on the device, by
`batches.normalise`.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from ensemble.errors import UserError
from ensemble.sources import clutter, folders, movielens, own_arrays, prepare_dataset, tfds_records
from ensemble.sources.batches import CLUTTER_STREAM, seeded_generator
from ensemble.sources.dataset import Dataset, Split, WatchDataset, stratified_split
from ensemble.sources.digits import read_digits
from ensemble.sources.own_arrays import SPLITS

# Examples in train, validation and calibration, consecutive in TFDS's training split, and in test.
TFDS_SIZES = {
    "mnist": (50_000, 5_000, 5_000, 10_000),
    "fashion_mnist": (50_000, 5_000, 5_000, 10_000),
    "kmnist": (50_000, 5_000, 5_000, 10_000),
    "cifar10": (45_000, 2_500, 2_500, 10_000),
}
KNOWN_SHAPES = {
    "digits": (8, 8, 1),
    "clutter": (clutter.SIDE, clutter.SIDE, 1),
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
    "kmnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
}
DIGITS_SIZES = {"train": 1_197, "validation": 150, "calibration": 150, "test": 300}
DIGITS_SEED = 0  # The digits' split is the same for every run.
CLUTTER_COPIES = {"train": 3, "validation": 4, "calibration": 4, "test": 5}  # Of each digit.
BUNDLED = ("digits", "clutter")  # These need no file but scikit-learn's.
KNOWN_DATASETS = (*BUNDLED, *TFDS_SIZES, "npz:PATH", "folder:PATH", *movielens.KNOWN_WATCHES)


def load_dataset(
    name: str, data_dir: str | None = None, seed: int = 0, hold_out: bool = True
) -> Dataset:
    """Loads a data set.

    Args:
        name: `digits`, or `clutter`, which is generated from them; a TFDS set, `mnist`,
            `fashion_mnist`, `kmnist` or `cifar10`, which is prepared first where it is not; own
            data, `npz:PATH` or `folder:PATH` (see `own_arrays`); or who watched what (see
            `movielens`).
        data_dir: where TFDS sets lie; by default the variable TFDS_DATA_DIR, else
            `~/tensorflow_datasets`.
        seed: of the split of own data that comes without splits.
        hold_out: whether to hold validation and calibration data out of the training data; if not,
            all of them are for training, and of own data also what would be carved for testing.

    Raises:
        UserError: if the name is unknown, or the data cannot be had or used.
    """
    kind, _, path = name.partition(":")
    if name == "digits":
        return _held_out(_load_digits(), hold_out)
    if name == "clutter":
        return _held_out(_load_clutter(), hold_out)
    if name in TFDS_SIZES:
        return _held_out(_load_tfds(name, tfds_records.data_directory(data_dir)), hold_out)
    if name in movielens.TFDS_NAMES or kind == "watches":
        return _load_watches(name, data_dir, seed)
    if kind == "npz" and path:
        return dataset_from_arrays(own_arrays.read_npz(path), name, seed, hold_out)
    if kind == "folder" and path:
        return dataset_from_arrays(folders.read_folder(path), name, seed, hold_out)
    close = difflib.get_close_matches(name, KNOWN_DATASETS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UserError(f"dataset={name!r} is unknown; known are {', '.join(KNOWN_DATASETS)}{hint}")


def load_test_inputs(name: str, data_dir: str | None = None) -> np.ndarray:
    """Loads the inputs [N, ...] of a set's test split; of own data without one, all inputs.

    Args:
        name: as of `load_dataset`.
        data_dir: as of `load_dataset`.

    Raises:
        UserError: as `load_dataset`.
    """
    if name not in TFDS_SIZES:
        splits = load_dataset(name, data_dir, hold_out=False).splits
        return splits["test" if "test" in splits else "train"].inputs
    directory = prepare_dataset.find_or_prepare(name, tfds_records.data_directory(data_dir))
    return tfds_records.read_records(directory, ["test"]).splits["test"][0]


def sets_of_shape(shape: Sequence[int], data_dir: str | None = None) -> list[str]:
    """Names of the known sets that are here already, with examples of this shape.

    Args:
        shape: (H, W, C).
        data_dir: as of `load_dataset`.
    """
    directory = tfds_records.data_directory(data_dir)
    return [
        name
        for name, known in KNOWN_SHAPES.items()
        if known == tuple(shape)
        and (name in BUNDLED or tfds_records.find_prepared(name, directory) is not None)
    ]


def _load_watches(name: str, data_dir: str | None, seed: int) -> WatchDataset:
    """Reads or makes watches, and holds a tenth of each user's out."""
    watches = movielens.load_watches(name, data_dir, seed)
    observed, held_out = movielens.hold_out(watches, seed)
    pairs = np.argwhere(observed == 1).astype(np.int32)
    train = Split(pairs, np.ones(len(pairs), np.int32))
    return WatchDataset(
        name=name,
        splits={"train": train, "test": Split(held_out.pairs, held_out.targets)},
        num_classes=2,
        class_names=("not watched", "watched"),
        shift=np.zeros((), np.float32),
        scale=np.ones((), np.float32),
        watches=watches,
        observed=observed,
    )


def _held_out(dataset: Dataset, hold_out: bool) -> Dataset:
    """The data set as it is, or all but its test split joined for training, in order."""
    if hold_out:
        return dataset
    *parts, test = dataset.splits.values()
    train = Split(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return dataclasses.replace(dataset, splits={"train": train, "test": test})


def _load_digits() -> Dataset:
    """scikit-learn's 1,797 digits: uint8 0..16, `[8, 8, 1]`."""
    rows = read_digits()
    everything = Split(rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32))
    splits = _divide(everything, DIGITS_SIZES, DIGITS_SEED)
    return _dataset("digits", splits, tuple("0123456789"), scale=1 / 16)


def _load_clutter() -> Dataset:
    """Digits on busy backgrounds. Each split shows its own digits only, as `digits` splits them."""
    digits = _load_digits()
    splits = {}
    for index, (split_name, (inputs, labels)) in enumerate(digits.splits.items()):
        copies = CLUTTER_COPIES[split_name]
        images = clutter.render(inputs[..., 0], copies, seeded_generator(CLUTTER_STREAM, 0, index))
        splits[split_name] = Split(images, np.tile(labels, copies))
    return _dataset("clutter", splits, digits.class_names, scale=1 / 255)


def _load_tfds(name: str, data_dir: Path) -> Dataset:
    """A TFDS set, prepared if need be, its training split cut in order."""
    directory = prepare_dataset.find_or_prepare(name, data_dir)
    records = tfds_records.read_records(directory)
    sizes = TFDS_SIZES[name]
    expected = {"train": sum(sizes[:-1]), "test": sizes[-1]}
    found = {split: len(labels) for split, (_, labels) in records.splits.items()}
    if found != expected:
        raise tfds_records.broken(directory, f"it holds {found} examples, not {expected}")
    images, labels = records.splits["train"]
    bounds = np.cumsum(sizes[:-2])
    pairs = [*zip(np.split(images, bounds), np.split(labels, bounds), strict=True)]
    splits = {
        split_name: Split(*pair)
        for split_name, pair in zip(SPLITS, [*pairs, records.splits["test"]], strict=True)
    }
    return _dataset(name, splits, records.class_names, scale=1 / 255)


def dataset_from_arrays(
    arrays: Mapping[str, Any], name: str = "arrays", seed: int = 0, hold_out: bool = True
) -> Dataset:
    """Makes a data set of the user's own arrays.

    Args:
        arrays: `inputs` and `labels`, to be split 70 / 10 / 10 / 10; or `train_inputs` and
            `train_labels` with any of `validation_*`, `calibration_*` and `test_*`, where each
            split that is not given is carved from the training data, a tenth of it. Optionally
            `class_names`. Inputs are feature vectors `[N, F]` or images `[N, H, W]` or
            `[N, H, W, C]`; labels `[N]` are 0..C-1.
        name: of the data set, also for messages.
        seed: of the carving, which is stratified: every split has its share of every class.
        hold_out: whether to carve at all; if not, splits that are not given do not exist.

    Raises:
        UserError: if the arrays cannot be used, or are too few to be split.
    """
    parts, class_names = own_arrays.check_arrays(arrays, name)
    splits = {split_name: Split(*pair) for split_name, pair in parts.items()}
    splits["train"] = source = splits.pop(own_arrays.POOL, None) or splits["train"]
    absent = [split_name for split_name in SPLITS[1:] if split_name not in splits]
    if absent and hold_out:
        splits |= _divide(source, _carved_sizes(len(source.targets), absent, name), seed)
    splits = {split_name: splits[split_name] for split_name in SPLITS if split_name in splits}
    _warn_of_absent_classes(name, splits["train"].targets, class_names)
    return _dataset(name, splits, class_names, *_own_shift_and_scale(splits["train"].inputs))


def _carved_sizes(num_examples: int, absent: Sequence[str], name: str) -> dict[str, int]:
    """A tenth, but at least one, for each absent split; the rest is for training."""
    size = max(1, (num_examples + 5) // 10)
    num_train = num_examples - size * len(absent)
    if num_train < 1:
        raise UserError(
            f"{name} has {num_examples} examples to carve train, {', '.join(absent)} from; each "
            f"split needs at least one: give more examples, or give those splits"
        )
    return {"train": num_train, **dict.fromkeys(absent, size)}


def _divide(source: Split, sizes: Mapping[str, int], seed: int) -> dict[str, Split]:
    parts = stratified_split(source.targets, [*sizes.values()], seed)
    return {
        split_name: Split(source.inputs[part], source.targets[part])
        for split_name, part in zip(sizes, parts, strict=True)
    }


def _own_shift_and_scale(inputs: np.ndarray) -> tuple[Any, Any]:
    """What normalises own data, from its training inputs.

    Returns:
        for feature vectors their mean and inverse standard deviation `[F]` (1 where a feature is
        constant); for uint8 images 0 and what makes the largest training value 1; float images
        stay as they are, 0 and 1.
    """
    if inputs.ndim == 2:
        deviation = np.std(inputs, axis=0, dtype=np.float64)
        is_constant = (inputs == inputs[0]).all(axis=0)
        return inputs.mean(axis=0, dtype=np.float64), 1 / np.where(is_constant, 1, deviation)
    return 0, 1 / max(1, inputs.max()) if inputs.dtype == np.uint8 else 1


def _warn_of_absent_classes(name: str, labels: np.ndarray, class_names: Sequence[str]) -> None:
    counts = np.bincount(labels, minlength=len(class_names))
    absent = [class_names[int(label)] for label in np.flatnonzero(counts == 0)]
    if absent:
        logging.warning("%s: no training example of class %s", name, ", ".join(absent))


def _dataset(
    name: str,
    splits: dict[str, Split],
    class_names: tuple[str, ...],
    shift: Any = 0,
    scale: Any = 1,
) -> Dataset:
    shift, scale = np.asarray(shift, np.float32), np.asarray(scale, np.float32)
    return Dataset(name, splits, len(class_names), class_names, shift, scale)
