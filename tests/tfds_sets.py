"""Writes small image sets in the format in which TensorFlow Datasets leaves them."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import ROOT
from tensorflow_datasets.proto import tf_example_pb2

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
    example = tf_example_pb2.Example()
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
    features: dict[str, Any],
    keys: tuple[str, str] | None = KEYS,
    name: str | None = None,
) -> None:
    """`dataset_info.json`, and by TFDS `features.json` and the names of classes."""
    splits = [
        {"name": split, "shardLengths": [str(length) for length in lengths]}
        for split, lengths in shard_lengths.items()
    ]
    info = {
        "name": name or directory.parent.name,
        "version": directory.name,
        "fileFormat": "array_record",
        "splits": splits,
    }
    if keys:
        info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": key} for key in keys]}}
    (directory / "dataset_info.json").write_text(json.dumps(info))
    tfds.features.FeaturesDict(features).save_config(directory)


def write_set(
    data_dir: Path,
    name: str,
    splits: dict[str, tuple[Any, np.ndarray]],
    version: str = "3.0.1",
    num_shards: int = 1,
    shape: tuple | None = None,
    keys: tuple[str, str] = KEYS,
    more_features: dict[str, Any] | None = None,
) -> Path:
    """Writes a prepared set of images uint8 `[N, H, W, C]` and labels `[N]`.

    Args:
        data_dir: where to.
        name: of the set, perhaps with a configuration.
        splits: images and labels of each; images of several sizes are a list.
        version: of the set.
        num_shards: of each split.
        shape: of an image by `features.json`, None where it may differ; by default as they are.
        keys: of image and label.
        more_features: of `features.json`.

    Returns:
        its directory, `data_dir/name/version`.
    """
    directory = data_dir / name / version
    directory.mkdir(parents=True)
    stem = name.partition("/")[0]
    shard_lengths = {}
    for split, (images, labels) in splits.items():
        parts = np.array_split(np.arange(len(labels)), num_shards)
        shard_lengths[split] = [len(part) for part in parts]
        for index, part in enumerate(parts):
            file = directory / f"{stem}-{split}.array_record-{index:05d}-of-{num_shards:05d}"
            records = [serialise(encode_png(images[i]), int(labels[i]), keys) for i in part]
            write_array_record(file, records)
    shape = next(iter(splits.values()))[0].shape[1:] if shape is None else shape
    features = {
        keys[0]: tfds.features.Image(shape=shape),
        keys[1]: tfds.features.ClassLabel(num_classes=10),
        **(more_features or {}),
    }
    write_json_files(directory, shard_lengths, features, keys, stem)
    return directory
