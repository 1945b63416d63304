"""Image sets of TFDS as sources: read whole into memory, their training split cut in order."""

import numpy as np

from ensemble.source import Examples, Request
from ensemble.sources import prepare_dataset, tfds_records
from ensemble.sources.dataset import Dataset, make_dataset
from ensemble.sources.splitting import SPLITS

# Examples in train, validation and calibration, consecutive in TFDS's training split, and in test.
TFDS_SIZES = {
    "mnist": (50_000, 5_000, 5_000, 10_000),
    "fashion_mnist": (50_000, 5_000, 5_000, 10_000),
    "kmnist": (50_000, 5_000, 5_000, 10_000),
    "cifar10": (45_000, 2_500, 2_500, 10_000),
}


def load_images(name: str, request: Request) -> Dataset:
    """Reads a set, which is prepared first if need be."""
    data_dir = tfds_records.data_directory(request.data_dir)
    directory = prepare_dataset.find_or_prepare(name, data_dir)
    if request.only_test:
        records = tfds_records.read_records(directory, ["test"])
        splits = {"test": Examples(*records.splits["test"])}
        return make_dataset(name, splits, records.class_names, scale=1 / 255)
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
        split_name: Examples(*pair)
        for split_name, pair in zip(SPLITS, [*pairs, records.splits["test"]], strict=True)
    }
    return make_dataset(name, splits, records.class_names, 1 / 255, request.hold_out)


def is_prepared(name: str, data_dir: str | None) -> bool:
    """Whether a set can be read without preparing it."""
    return tfds_records.find_prepared(name, tfds_records.data_directory(data_dir)) is not None
