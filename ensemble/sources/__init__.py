"""Data in: sets by name, a user's own, splits and batch order."""

from ensemble.sources.batches import augment, epoch_batches, normalise
from ensemble.sources.catalogue import KNOWN_DATASETS, dataset_from_arrays, load_dataset
from ensemble.sources.dataset import Dataset, Split, stratified_split

__all__ = [
    "KNOWN_DATASETS",
    "Dataset",
    "Split",
    "augment",
    "dataset_from_arrays",
    "epoch_batches",
    "load_dataset",
    "normalise",
    "stratified_split",
]
