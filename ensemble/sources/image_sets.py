"""Image sets of TFDS as sources, read whole into memory where they fit.

Four are known by their names, `mnist` and others: their training split is cut in order. Any other
set of images and class labels, `tfds:NAME` or `tfds:NAME/CONFIG`, is what its own description says:
its splits `train`, `validation` and `test` are taken, and what there is not is carved from `train`
as for own data.
"""

import logging
import math
from collections.abc import Container
from pathlib import Path

import numpy as np

from ensemble.errors import UserError
from ensemble.notes import note
from ensemble.source import Examples, Request, Source, Stored
from ensemble.sources import prepare_dataset, tfds_images, tfds_records
from ensemble.sources.dataset import Dataset, make_dataset, own_dataset
from ensemble.sources.on_disk import split_decoded
from ensemble.sources.own_arrays import OwnData, max_data_bytes
from ensemble.sources.splitting import SPLITS
from ensemble.sources.tfds_images import PreparedImages
from ensemble.sources.tfds_records import PreparedSet

logger = logging.getLogger("ensemble")


# Examples in train, validation and calibration, consecutive in TFDS's training split, and in test.
TFDS_SIZES = {
    "mnist": (50_000, 5_000, 5_000, 10_000),
    "fashion_mnist": (50_000, 5_000, 5_000, 10_000),
    "kmnist": (50_000, 5_000, 5_000, 10_000),
    "cifar10": (45_000, 2_500, 2_500, 10_000),
}


def load_images(name: str, request: Request) -> Dataset:
    """Reads one of the four sets, which is prepared first if need be."""
    data_dir = tfds_records.data_directory(request.data_dir)
    prepared = PreparedSet(prepare_dataset.find_or_prepare(name, data_dir))
    features = tfds_images.read_features(prepared)
    sizes = TFDS_SIZES[name]
    expected = {"train": sum(sizes[:-1]), "test": sizes[-1]}
    if prepared.sizes != expected:
        what = f"it holds {prepared.sizes} examples, not {expected}"
        raise tfds_records.broken(prepared.directory, what)
    found = {
        split: PreparedImages(prepared, features, split).examples(slice(None))
        for split in (["test"] if request.only_test else expected)
    }
    if min(labels.min() for _, labels in found.values()) < 0:
        raise tfds_records.broken(prepared.directory, "it holds examples without a label")
    splits = {"test": Examples(*found["test"])}
    if request.only_test:
        return make_dataset(name, splits, features.class_names, scale=1 / 255)
    bounds = np.cumsum(sizes[:-2])
    parts = zip(*(np.split(array, bounds) for array in found["train"]), strict=True)
    splits = {split: Examples(*pair) for split, pair in zip(SPLITS, parts, strict=False)} | splits
    return make_dataset(name, splits, features.class_names, 1 / 255, request.hold_out)


def is_prepared(name: str, data_dir: str | None) -> bool:
    """Whether a set can be read without preparing it.

    Raises:
        UserError: there can be no such set, it is there in part, or TFDS is not installed.
    """
    set_name = tfds_records.set_name(name)
    tfds_records.check_name(set_name)
    tfds_records.check_installed()
    return tfds_records.find_prepared(set_name, tfds_records.data_directory(data_dir)) is not None


def load_tfds(name: str, request: Request) -> Source:
    """Reads any set of images and class labels, which is prepared first if need be.

    Raises:
        UserError: there is no such set, or it is of another kind, or it cannot be had or read.
    """
    prepared = _open(name, request)
    features = tfds_images.read_features(prepared)
    sizes = prepared.sizes
    wanted = [split for split in SPLITS if split in sizes]
    if request.only_test and "test" in wanted:
        wanted = ["test"]
    shape = features.shape(request.size)
    if shape and sum(sizes[split] for split in wanted) * math.prod(shape) > max_data_bytes():
        return split_decoded(given_tfds(name, request), name, request)
    splits = {}
    for split in wanted:
        stored = PreparedImages(prepared, features, split, request.size)
        images, labels = stored.examples(slice(None))
        if _has_labels(prepared, split, labels):
            splits[split] = images, labels
    if request.only_test and "test" in splits:
        examples = {"test": Examples(*splits["test"])}
        return make_dataset(name, examples, features.class_names, scale=1 / 255)
    _check_has_train(name, splits, prepared)
    if left_out := [split for split in sizes if split not in SPLITS]:
        logger.info("%s: not used are the splits %s.", name, ", ".join(left_out))
    arrays: dict[str, np.ndarray] = {"class_names": np.array(features.class_names)}
    for split, (images, labels) in splits.items():
        arrays |= {f"{split}_inputs": images, f"{split}_labels": labels}
    return own_dataset(arrays, name, request)


def given_tfds(name: str, request: Request) -> OwnData:
    """The examples of any set of images and class labels, which are decoded when they are read.

    Raises:
        UserError: as `load_tfds`, but for images that cannot be decoded.
    """
    prepared = _open(name, request)
    features = tfds_images.read_features(prepared)
    inputs, targets = dict[str, Stored](), dict[str, np.ndarray]()
    for split in (one for one in SPLITS if one in prepared.sizes):
        stored = PreparedImages(prepared, features, split, request.size)
        labels = stored.labels()
        if _has_labels(prepared, split, labels):
            inputs[split], targets[split] = stored, labels
    _check_has_train(name, targets, prepared)
    shapes = {stored.shape[1:] for stored in inputs.values()}
    if len(shapes) > 1:
        raise UserError(
            f"{name} has splits of images of {len(shapes)} sizes; all must have one: set --resize, "
            "such as 64 or 64x48"
        )
    return OwnData(inputs, targets, np.dtype(np.uint8), features.class_names)


def _check_has_train(name: str, splits: Container[str], prepared: PreparedSet) -> None:
    if "train" not in splits:
        found = ", ".join(prepared.sizes)
        raise UserError(
            f"{name} has no training examples: its splits are {found}; take another set"
        )


def _open(name: str, request: Request) -> PreparedSet:
    """Opens a set, which is prepared first if need be."""
    set_name = tfds_records.set_name(name)
    tfds_records.check_name(set_name)
    data_dir = tfds_records.data_directory(request.data_dir)
    _check_configuration(name, set_name, data_dir)
    return PreparedSet(prepare_dataset.find_or_prepare(set_name, data_dir))


def _check_configuration(name: str, set_name: str, data_dir: Path) -> None:
    """Refuses a set by its name alone where it lies here in configurations."""
    if "/" in set_name or tfds_records.version_directory(set_name, data_dir) is not None:
        return
    found = sorted(
        folder.name
        for folder in (data_dir / set_name).glob("*")
        if tfds_records.version_directory(f"{set_name}/{folder.name}", data_dir) is not None
    )
    if found:
        raise UserError(
            f"{name} has configurations, of which {data_dir / set_name} has {', '.join(found)}: "
            f"choose one, such as {name}/{found[0]}"
        )


def _has_labels(prepared: PreparedSet, split: str, labels: np.ndarray) -> bool:
    """Whether a split can be scored: where labels are kept secret, they are -1."""
    if (labels >= 0).all():
        return True
    if (labels >= 0).any():
        raise tfds_records.broken(prepared.directory, f"only some examples of {split} have a label")
    note(f"{prepared.directory}: the split {split} has no labels, and is not used.")
    return False
