"""Writes small image sets in the format in which TensorFlow Datasets leaves them."""

import io
import json
from pathlib import Path

import numpy as np
import PIL.Image
from array_record.python.array_record_module import ArrayRecordWriter

from ensemble.sources import tfds_records


def encode_png(image: np.ndarray) -> bytes:
    """The PNG file of a uint8 image `[H, W, 1 or 3]`."""
    file = io.BytesIO()
    PIL.Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "PNG")
    return file.getvalue()


def serialise(encoded_image: bytes, label: int) -> bytes:
    """The `tf.train.Example` of an encoded image and its label."""
    example = tfds_records.example_class()()
    example.features.feature["image"].bytes_list.value.append(encoded_image)
    example.features.feature["label"].int64_list.value.append(label)
    return example.SerializeToString()


def write_array_record(file: Path, records: list[bytes]) -> None:
    """One shard, a record per group as TFDS has it."""
    writer = ArrayRecordWriter(str(file), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_json_files(directory: Path, shard_lengths: dict[str, list[int]], shape: tuple) -> None:
    """`dataset_info.json` and `features.json`, as far as they are read; ten classes."""
    splits = [
        {"name": split, "shardLengths": [str(length) for length in lengths]}
        for split, lengths in shard_lengths.items()
    ]
    (directory / "dataset_info.json").write_text(
        json.dumps({"fileFormat": "array_record", "splits": splits})
    )
    fields = {
        "image": {"image": {"shape": {"dimensions": [str(length) for length in shape]}}},
        "label": {"classLabel": {"numClasses": "10"}},
    }
    (directory / "features.json").write_text(json.dumps({"featuresDict": {"features": fields}}))


def write_set(
    data_dir: Path,
    name: str,
    splits: dict[str, tuple[np.ndarray, np.ndarray]],
    version: str = "3.0.1",
    num_shards: int = 1,
) -> Path:
    """Writes a prepared set of images uint8 `[N, H, W, C]` and labels `[N]`.

    Returns:
        its directory, `data_dir/name/version`.
    """
    directory = data_dir / name / version
    directory.mkdir(parents=True)
    shard_lengths = {}
    for split, (images, labels) in splits.items():
        parts = np.array_split(np.arange(len(labels)), num_shards)
        shard_lengths[split] = [len(part) for part in parts]
        for index, part in enumerate(parts):
            file = directory / f"{name}-{split}.array_record-{index:05d}-of-{num_shards:05d}"
            records = [serialise(encode_png(images[i]), int(labels[i])) for i in part]
            write_array_record(file, records)
    write_json_files(directory, shard_lengths, splits["train"][0].shape[1:])
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
