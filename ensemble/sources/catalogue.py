"""Data by name: what the registry's line of a data set loads, and which sets there are here."""

import difflib
from collections.abc import Sequence

from ensemble import registry
from ensemble.errors import UserError
from ensemble.registry import SOURCES, SourceEntry
from ensemble.source import Request, Source, SplitInputs

KNOWN_DATASETS = tuple(name for name, entry in SOURCES.items() if entry.is_listed)
_PREFIXES = {key.partition(":")[0]: key for key in SOURCES if ":" in key}


def find_entry(name: str) -> SourceEntry | None:
    """The line of the registry that a data set's name belongs to; None if there is none."""
    prefix, colon, path = name.partition(":")
    if colon:
        return SOURCES[_PREFIXES[prefix]] if prefix in _PREFIXES and path else None
    return SOURCES.get(name)


def models_of(name: str) -> tuple[str, ...]:
    """The models that a data set is for; none if it is for all that no data set is for."""
    entry = find_entry(name)
    return entry.models if entry else ()


def load_dataset(
    name: str, data_dir: str | None = None, seed: int = 0, hold_out: bool = True
) -> Source:
    """Loads a data set.

    Args:
        name: `digits`, or `clutter`, which is generated from them; a TFDS set, `mnist`,
            `fashion_mnist`, `kmnist` or `cifar10`, which is prepared first where it is not; own
            data, `npz:PATH` or `folder:PATH` (see `own_arrays`) or `npy:FOLDER` (see `memory_map`);
            or who watched what (see `movielens`).
        data_dir: where TFDS sets lie; by default the variable TFDS_DATA_DIR, else
            `~/tensorflow_datasets`.
        seed: of the split of own data that comes without splits.
        hold_out: whether to hold validation and calibration data out of the training data; if not,
            all of them are for training, and of own data also what would be carved for testing.

    Raises:
        UserError: if the name is unknown, or the data cannot be had or used.
    """
    return _load(name, Request(data_dir, seed, hold_out))


def load_test_inputs(name: str, data_dir: str | None = None) -> SplitInputs:
    """Loads the inputs [N, ...] of a set's test split; of own data without one, all inputs.

    Args:
        name: as of `load_dataset`.
        data_dir: as of `load_dataset`.

    Raises:
        UserError: as `load_dataset`.
    """
    source = _load(name, Request(data_dir, hold_out=False, only_test=True))
    return SplitInputs(source, "test" if "test" in source.sizes else "train")


def sets_of_shape(shape: Sequence[int], data_dir: str | None = None) -> list[str]:
    """Names of the known sets that are here already, with examples of this shape.

    Args:
        shape: (H, W, C).
        data_dir: as of `load_dataset`.
    """
    return [
        name
        for name, entry in SOURCES.items()
        if entry.input_shape == tuple(shape)
        and (not entry.finder or registry.load(entry.finder)(name, data_dir))
    ]


def _load(name: str, request: Request) -> Source:
    entry = find_entry(name)
    if entry is None:
        close = difflib.get_close_matches(name, KNOWN_DATASETS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"dataset={name!r} is unknown; known are {', '.join(KNOWN_DATASETS)}{hint}")
    return registry.load(entry.loader)(name, request)
