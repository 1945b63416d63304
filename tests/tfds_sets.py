"""Writes small image sets in the format in which TensorFlow Datasets leaves them."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import ROOT

from ensemble.sources import tfds_records

KEYS = ("image", "label")


def real_data_dir(name: str) -> str:
    """Where a real prepared set lies, or skip."""
    candidates = [os.environ.get("TFDS_DATA_DIR"), ROOT.parent / "shared" / "tensorflow_datasets"]
    for candidate in filter(None, candidates):
        if (Path(candidate) / name).is_dir():
            return str(candidate)
    pytest.skip(f"{name} is in none of {candidates}: reading the real set was NOT tested")


def encode_png(image: np.ndarray) -> bytes:
    """The PNG file of a uint8 image `[H, W, 1 or 3]`."""
    file = io.BytesIO()
    PIL.Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "PNG")
    return file.getvalue()


def serialise(encoded_image: bytes, label: int, keys: tuple[str, str] = KEYS) -> bytes:
    """The `tf.train.Example` of an encoded image and its label."""
    example = tfds_records.example_class()()
    example.features.feature[keys[0]].bytes_list.value.append(encoded_image)
    example.features.feature[keys[1]].int64_list.value.append(label)
    return example.SerializeToString()


def write_array_record(file: Path, records: list[bytes]) -> None:
    """One shard, a record per group as TFDS has it."""
    writer = ArrayRecordWriter(str(file), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_json_files(
    directory: Path,
    shard_lengths: dict[str, list[int]],
    shape: tuple,
    keys: tuple[str, str] = KEYS,
    more_fields: dict | None = None,
) -> None:
    """`dataset_info.json` and `features.json`, as far as they are read; ten classes."""
    splits = [
        {"name": split, "shardLengths": [str(length) for length in lengths]}
        for split, lengths in shard_lengths.items()
    ]
    supervised = {"tuple": {"items": [{"featureKey": key} for key in keys]}}
    info = {"fileFormat": "array_record", "splits": splits, "supervisedKeys": supervised}
    (directory / "dataset_info.json").write_text(json.dumps(info))
    fields = {
        keys[0]: {"image": {"shape": {"dimensions": [str(length) for length in shape]}}},
        keys[1]: {"classLabel": {"numClasses": "10"}},
        **(more_fields or {}),
    }
    (directory / "features.json").write_text(json.dumps({"featuresDict": {"features": fields}}))


def write_set(
    data_dir: Path,
    name: str,
    splits: dict[str, tuple[Any, np.ndarray]],
    version: str = "3.0.1",
    num_shards: int = 1,
    shape: tuple | None = None,
    keys: tuple[str, str] = KEYS,
    more_fields: dict | None = None,
) -> Path:
    """Writes a prepared set of images uint8 `[N, H, W, C]` and labels `[N]`.

    Args:
        data_dir: where to.
        name: of the set, perhaps with a configuration.
        splits: images and labels of each; images of several sizes are a list.
        version: of the set.
        num_shards: of each split.
        shape: of an image by `features.json`, -1 where it may differ; None: as they are.
        keys: of image and label.
        more_fields: of `features.json`.

    Returns:
        its directory, `data_dir/name/version`.
    """
    directory = data_dir / name / version
    directory.mkdir(parents=True)
    stem, _, configuration = name.partition("/")
    shard_lengths = {}
    for split, (images, labels) in splits.items():
        parts = np.array_split(np.arange(len(labels)), num_shards)
        shard_lengths[split] = [len(part) for part in parts]
        for index, part in enumerate(parts):
            file = directory / f"{stem}-{split}.array_record-{index:05d}-of-{num_shards:05d}"
            records = [serialise(encode_png(images[i]), int(labels[i]), keys) for i in part]
            write_array_record(file, records)
    shape = next(iter(splits.values()))[0].shape[1:] if shape is None else shape
    write_json_files(directory, shard_lengths, shape, keys, more_fields)
    if configuration:
        file = directory / "dataset_info.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"name": stem}))
    return directory


def random_splits(shape: tuple[int, ...] = (6, 5, 1)) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """50 training and 20 test images of random pixels, labels 0, 1, ... 9, 0, ..."""
    rng = np.random.default_rng(0)
    return {
        split: (
            rng.integers(0, 256, (size, *shape), np.uint8),
            np.arange(size, dtype=np.int32) % 10,
        )
        for split, size in (("train", 50), ("test", 20))
    }
