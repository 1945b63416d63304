"""Data in: sets by name, a user's own, splits and batch order."""

from ensemble.source import Examples, Source, in_memory
from ensemble.sources.batches import augment, epoch_batches, normalise
from ensemble.sources.catalogue import KNOWN_DATASETS, load_dataset
from ensemble.sources.dataset import Dataset, dataset_from_arrays
from ensemble.sources.splitting import stratified_split

__all__ = [
    "KNOWN_DATASETS",
    "Dataset",
    "Examples",
    "Source",
    "augment",
    "dataset_from_arrays",
    "epoch_batches",
    "in_memory",
    "load_dataset",
    "normalise",
    "stratified_split",
]
