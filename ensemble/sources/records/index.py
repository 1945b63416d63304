"""What lies beside the shards of a folder of records: an index and what is known of each example.

`records.json` says which shards there are, and is written last: a folder without it is not whole.
`examples.npz` has the targets, and of the inputs digests and extremes, so that splits are carved
and normalised without reading the shards. Both may come from anybody.
"""

import contextlib
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble import target_rows
from ensemble.errors import UserError, in_one_line
from ensemble.sources.own_arrays import OwnData, Summary, max_data_bytes
from ensemble.sources.records.shards import RecordArray, shard_name
from ensemble.sources.splitting import POOL, SPLITS
from ensemble.storage.npz import read_arrays
from ensemble.storage.paths import is_remote
from ensemble.storage.schema import MAX_BYTES, checksum, parse, to_json

INDEX, EXAMPLES = "records.json", "examples.npz"
_FORM = "records 1"
_WEIGHTS = "weights"
_ANEW = "write it again by ensemble convert"
_RESTORE = (
    "restore the file, or write the folder anew without what is damaged: python -m ensemble "
    "convert records:{} NEW_FOLDER --skip_damaged"
)
_DTYPES = ("uint8", "float32")
_MAX_VALUES = 2**28
"""The most values of an example."""


class Index(NamedTuple):
    """The content of `records.json`.

    Attributes:
        tag: 16 hexadecimal digits, which every record of the folder has.
        input_shape: of an example.
        dtype: of the inputs.
        class_names: one per class; None where targets are numbers.
        lengths: records of each shard, by part: `POOL`, or splits.
        examples: CRC-32 of `examples.npz`.
    """

    tag: str
    input_shape: tuple[int, ...]
    dtype: str
    class_names: tuple[str, ...] | None
    lengths: Mapping[str, list[int]]
    examples: int

    def to_json(self) -> str:
        """The file's text."""
        content = {"form": _FORM, **self._asdict()}
        return to_json({**content, "checksum": checksum(content)})


def read_folder(folder: Path, name: str) -> OwnData:
    """The examples of a folder of records on a disk.

    Args:
        folder: that holds an index.
        name: of the data, of which the folder is a copy where they are in a bucket.

    Raises:
        UserError: the folder is not whole or damaged.
    """
    again, remedy = _ANEW, _RESTORE.format(folder)
    if is_remote(name.partition(":")[2]):
        again = remedy = f"remove {folder}, which is then copied again"
    with damage_named(name, again):
        with (folder / INDEX).open("rb") as file:
            index = parse_index(file.read(MAX_BYTES + 1))
        arrays = _read_examples(folder / EXAMPLES, index)
        return _given(folder, index, arrays, remedy)


@contextlib.contextmanager
def damage_named(name: str, remedy: str = _ANEW) -> Iterator[None]:
    """Turns what is found to be wrong with a folder into one line.

    Args:
        name: of the data.
        remedy: of the damage.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{name} is damaged ({in_one_line(error, 200)}); {remedy}") from error


def parse_index(text: bytes) -> Index:
    """The index of a folder.

    Args:
        text: of its file.

    Raises:
        ValueError: it is none; or a KeyError or TypeError.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"{INDEX} has more than {MAX_BYTES:,} bytes")
    content = parse(text)
    if content.pop("checksum", None) != checksum(content):
        raise ValueError(f"the checksum of {INDEX} does not agree with its content")
    if content.pop("form", None) != _FORM:
        raise ValueError(f"{INDEX} is of another version")
    index = Index(**content)
    if not isinstance(index.tag, str) or not re.fullmatch("[0-9a-f]{16}", index.tag):
        raise ValueError("its tag is none")
    shape, names = index.input_shape, index.class_names
    if not _are_positive(shape) or len(shape) not in (1, 3) or math.prod(shape) > _MAX_VALUES:
        raise ValueError(f"{shape} is no shape of an example")
    if index.dtype not in _DTYPES:
        raise ValueError(f"its dtype is none of {', '.join(_DTYPES)}")
    if names is not None:
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise ValueError("its class_names are no texts")
        if len(set(names)) < max(2, len(names)):
            raise ValueError("its class_names are not two or more different ones")
    parts = index.lengths
    if not isinstance(parts, dict) or not parts or not all(map(_are_positive, parts.values())):
        raise ValueError("it does not say how many records there are")
    if [*parts] != [POOL] and [*parts] != [
        one for one in SPLITS if one in parts and "train" in parts
    ]:
        raise ValueError(f"its parts are {', '.join(parts)}")
    return index._replace(
        input_shape=tuple(shape), class_names=None if names is None else tuple(names)
    )


def _are_positive(values: Any) -> bool:
    return (
        isinstance(values, list) and bool(values) and all(type(n) is int and n > 0 for n in values)
    )


def _read_examples(file: Path, index: Index) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise ValueError(f"{EXAMPLES} is missing")
    crc = 0
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            crc = zlib.crc32(block, crc)
    if crc != index.examples:
        raise ValueError(f"{EXAMPLES} is not that of {INDEX}")
    return read_arrays(file, max_data_bytes())


def _given(folder: Path, index: Index, arrays: dict[str, np.ndarray], remedy: str) -> OwnData:
    dtype = np.dtype(index.dtype)
    inputs, targets, known, first = {}, {}, {}, 0
    for part, lengths in index.lengths.items():
        size = sum(lengths)
        files = [folder / shard_name(part, i) for i in range(len(lengths))]
        tag = index.tag.encode()
        inputs[part] = RecordArray(files, lengths, first, tag, index.input_shape, dtype, remedy)
        first += size
        targets[part] = _targets(arrays, part, size, index.class_names)
        known[part] = Summary(
            _column(arrays, f"{part}_digests", size, np.dtype(np.uint64)),
            _column(arrays, f"{part}_low", size, dtype),
            _column(arrays, f"{part}_high", size, dtype),
        )
    weights = None
    if _WEIGHTS in arrays:
        size = len(next(iter(targets.values())))
        weights = _column(arrays, _WEIGHTS, size, np.dtype(np.float32))
        if not (weights > 0).all():
            raise ValueError("weights are not positive")
    return OwnData(inputs, targets, dtype, index.class_names, weights, known)


def _targets(
    arrays: Mapping[str, np.ndarray], part: str, size: int, class_names: tuple[str, ...] | None
) -> np.ndarray:
    if class_names is not None:
        labels = _column(arrays, f"{part}_{target_rows.VALUE}", size, np.dtype(np.int32))
        if labels.min() < 0 or labels.max() >= len(class_names):
            raise ValueError(f"labels of {part} are not of its classes")
        return labels
    columns = {}
    dtypes = {target_rows.VALUE: np.float32, target_rows.CENSORED: np.bool_}
    for name in (target_rows.VALUE, *target_rows.ANNOTATIONS):
        if name == target_rows.VALUE or f"{part}_{name}" in arrays:
            dtype = np.dtype(dtypes.get(name, np.float32))
            columns[name] = _column(arrays, f"{part}_{name}", size, dtype)
    if len(columns) > 1 and any(column.ndim > 1 for column in columns.values()):
        raise ValueError(f"targets of {part} are several, with annotations")
    return target_rows.joined(columns)


def _column(arrays: Mapping[str, np.ndarray], name: str, size: int, dtype: np.dtype) -> np.ndarray:
    """An array [N] of `examples.npz`, of targets also [N, D]."""
    column = arrays[name]
    has_shape = column.shape == (size,) or (
        column.ndim == 2 and len(column) == size and name.endswith(target_rows.VALUE)
    )
    if column.dtype != dtype or not has_shape or not np.isfinite(column).all():
        raise ValueError(f"{name} has shape {column.shape} and dtype {column.dtype}")
    return column


def columns_of(given: OwnData, known: Mapping[str, Summary]) -> dict[str, np.ndarray]:
    """The arrays of `examples.npz`."""
    arrays = {}
    for part, targets in given.targets.items():
        for name, column in target_rows.columns(targets).items():
            arrays[f"{part}_{name}"] = column
        for name, column in known[part]._asdict().items():
            arrays[f"{part}_{name}"] = column
    if given.weights is not None:
        arrays[_WEIGHTS] = given.weights
    return arrays
