"""The data of `ensemble.data`: sets by name, a user's own, batch order and augmentation."""

from ensemble.data import (
    KNOWN_DATASETS,
    Examples,
    Source,
    augment,
    dataset_from_arrays,
    epoch_batches,
    in_memory,
    load_dataset,
    normalise,
    stratified_split,
)

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
