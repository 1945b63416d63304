"""Data in: sets by name, a user's own, splits and batch order."""

from ensemble.data.batches import augment, epoch_batches, normalise
from ensemble.data.catalogue import KNOWN_DATASETS, load_dataset
from ensemble.data.dataset import dataset_from_arrays
from ensemble.data.source import Examples, Source, in_memory
from ensemble.data.splitting import stratified_split

__all__ = [
    "KNOWN_DATASETS",
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
