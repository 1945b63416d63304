"""Reads sets that TensorFlow Datasets (TFDS) prepared as ArrayRecord, without TensorFlow.

A prepared set is a directory `DATA_DIR/NAME/VERSION`, or `DATA_DIR/NAME/CONFIG/VERSION`, with
`dataset_info.json` (splits and their shard lengths) and shards
`NAME-SPLIT.array_record-00000-of-00001` of `tf.train.Example` protos. Those of image sets, which
are decoded here, hold an encoded `image` and a `label`; beside them are `features.json` (image
shape, number of classes), and `label.labels.txt` where classes have names.
"""

import functools
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from ensemble.errors import UserError, in_one_line
from ensemble.storage.npz import memory_bytes

_MAX_TEXT_BYTES = 10_000_000  # Of a JSON file or the names of classes; they have kilobytes.
_MAX_SIDE, _MAX_CLASSES = 2**16, 2**17  # Of an image in pixels; of a set.
# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto, as far
# as images, labels and MovieLens need it. Importing the copy inside TFDS imports all of TFDS: 0.4 s
# more.
EXAMPLE_PROTO = """
name: "example.proto" package: "tfds_records" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: "BytesList" }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: "Int64List" } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "Feature" } }
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: "FeatureEntry" } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" } }
"""


class Shard(NamedTuple):
    """One file of a split. `stem` and `suffix` enclose the file format's name."""

    split: str
    stem: str
    suffix: str
    num_examples: int

    def file_name(self, file_format: str) -> str:
        """The shard's file name in a format, `array_record` or `tfrecord`."""
        return f"{self.stem}.{file_format}-{self.suffix}"


class Records(NamedTuple):
    """A prepared set in memory.

    Attributes:
        splits: by TFDS split name, images uint8 `[N, H, W, C]` and labels int32 `[N]`.
        class_names: one name per class.
    """

    splits: dict[str, tuple[np.ndarray, np.ndarray]]
    class_names: tuple[str, ...]


def data_directory(data_dir: str | None) -> Path:
    """Where TFDS sets lie: `data_dir`, else TFDS_DATA_DIR, else ~/tensorflow_datasets.

    Raises:
        UserError: if it is not a local path.
    """
    path = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in path:
        raise UserError(f"data_dir={path} must be a local directory; copy the prepared set to one")
    return Path(path).expanduser().absolute()


def version_directory(name: str, data_dir: Path) -> Path | None:
    """The newest version's directory of a set, complete or not; None if there is none.

    What an interrupted preparation leaves behind is named `incomplete.*` and not seen.
    """
    versions = [
        path
        for path in (data_dir / name).glob("*.*.*")
        if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and path.is_dir()
    ]
    return max(versions, key=lambda path: tuple(map(int, path.name.split("."))), default=None)


def read_shards(directory: Path) -> list[Shard]:
    """The shards that `dataset_info.json` promises.

    Raises:
        UserError: if the file is absent or cannot be understood.
    """
    info = _read_json(directory / "dataset_info.json")
    try:
        # A set with configurations, `NAME/CONFIG/VERSION`, names its files after NAME.
        name = info.get("name", directory.parent.name)
        for one in (name, *(split["name"] for split in info["splits"])):
            if not re.fullmatch(r"[\w-]{1,100}", one, re.ASCII):  # It becomes a part of paths.
                raise ValueError(one)
        shards = [
            Shard(
                split=split["name"],
                stem=f"{name}-{split['name']}",
                suffix=f"{index:05d}-of-{len(split['shardLengths']):05d}",
                num_examples=int(length),
            )
            for split in info["splits"]
            for index, length in enumerate(split["shardLengths"])
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise broken(directory, "dataset_info.json does not list splits and shards") from error
    if not shards:
        raise broken(directory, "dataset_info.json lists no shards")
    return shards


def missing_files(directory: Path, shards: list[Shard], file_format: str) -> list[str]:
    """Names of the shards' files that are not there."""
    names = [shard.file_name(file_format) for shard in shards]
    return [name for name in names if not (directory / name).is_file()]


def find_prepared(name: str, data_dir: Path) -> Path | None:
    """The directory of a set that is complete as ArrayRecord.

    Returns:
        None if the set is absent, or complete in the TFRecord format only: it can be prepared.

    Raises:
        UserError: if the set is there in part.
    """
    directory = version_directory(name, data_dir)
    if directory is None:
        return None
    shards = read_shards(directory)
    missing = missing_files(directory, shards, "array_record")
    if not missing:
        return directory
    if not missing_files(directory, shards, "tfrecord"):
        return None
    raise broken(directory, f"{missing[0]} is missing")


def data_dir_of_run(name: str, data_dir: str | None) -> str | None:
    """A run's `data_dir`, if the set lies there ready to be read; else None.

    Who only reads a run, perhaps a stranger's, must not have sets prepared where it says.

    Raises:
        UserError: if the set is there in part.
    """
    if data_dir and find_prepared(name, data_directory(data_dir)) is not None:
        return data_dir
    return None


def broken(directory: Path, what: str) -> UserError:
    """The error for a set that cannot be read."""
    return UserError(
        f"{directory} is half-prepared or damaged: {what}; delete this directory, and the set is "
        f"prepared anew by the next run (which needs a network) or can be copied from elsewhere"
    )


def read_records(directory: Path, splits: Sequence[str] = ("train", "test")) -> Records:
    """Reads and decodes a prepared set: MNIST's 70,000 images in 1.3 s.

    One thread: images this small decode in 8 microseconds, and threads that hand over the
    interpreter lock that often are no faster.

    Args:
        directory: `DATA_DIR/NAME/VERSION`, as from `find_prepared`.
        splits: which to read.

    Raises:
        UserError: naming the first file that is damaged or does not hold what it should.
    """
    shape, class_names = _read_features(directory)
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for shard in read_shards(directory):
        if shard.split not in splits:
            continue
        file = directory / shard.file_name("array_record")
        records = read_array_record(file, shard.num_examples)
        parts.setdefault(shard.split, []).append(_decode(records, shape, len(class_names), file))
    return Records(
        {
            split: (np.concatenate(images), np.concatenate(labels))
            for split, pairs in parts.items()
            for images, labels in [zip(*pairs, strict=True)]
        },
        class_names,
    )


def _read_json(file: Path) -> Any:
    if not file.is_file():
        raise broken(file.parent, f"{file.name} is missing")
    try:
        return json.loads(_read_text(file))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise broken(file.parent, f"{file.name} is not readable JSON") from error


def _read_text(file: Path, errors: str = "strict") -> str:
    if file.stat().st_size > _MAX_TEXT_BYTES:
        raise broken(file.parent, f"{file.name} has more than {_MAX_TEXT_BYTES:,} bytes")
    return file.read_text(errors=errors)


def _read_features(directory: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The images' shape (H, W, C) and the class names ('0', '1', ... where they have none)."""
    features = _read_json(directory / "features.json")
    try:
        fields = features["featuresDict"]["features"]
        shape = tuple(int(length) for length in fields["image"]["image"]["shape"]["dimensions"])
        num_names = int(fields["label"]["classLabel"]["numClasses"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise broken(directory, "features.json describes no image and label") from error
    if len(shape) != 3 or shape[-1] not in (1, 3) or not all(0 < n <= _MAX_SIDE for n in shape):
        raise broken(directory, f"features.json has images of shape {shape}, not [H, W, 1 or 3]")
    if not 2 <= num_names <= _MAX_CLASSES:
        raise broken(directory, f"features.json has {num_names} classes")
    names_file = directory / "label.labels.txt"
    if not names_file.is_file():
        return shape, tuple(str(label) for label in range(num_names))
    class_names = tuple(_read_text(names_file, "replace").split("\n"))[:num_names]
    if len(class_names) != num_names or not all(class_names):
        raise broken(directory, f"label.labels.txt does not name {num_names} classes")
    return shape, class_names


def read_array_record(file: Path, num_examples: int) -> list[bytes]:
    """All records of one file, checked against their number."""
    from array_record.python.array_record_module import ArrayRecordReader  # Only where they are.

    try:
        reader = ArrayRecordReader(str(file))
        records = reader.read_all()
        reader.close()
    except (RuntimeError, ValueError, IndexError) as error:
        reason = in_one_line(error)
        raise broken(file.parent, f"{file.name} cannot be read ({reason})") from error
    if len(records) != num_examples:
        raise broken(
            file.parent,
            f"{file.name} holds {len(records)} examples, dataset_info.json says {num_examples}",
        )
    return records


@functools.cache
def example_class() -> Any:
    """The message class of `tf.train.Example`, in a pool of its own: TensorFlow has one, too."""
    schema = text_format.Parse(EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(schema.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tfds_records.Example"))


def _decode(
    records: list[bytes], shape: tuple[int, ...], num_names: int, file: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Decodes serialised examples. OpenCV takes a third of Pillow's time for a PNG this small.

    Returns:
        images uint8 `[N, H, W, C]` and labels int32 `[N]`.
    """
    import cv2  # Only where records are decoded: who reads digits does without.

    parse = example_class().FromString
    flags = cv2.IMREAD_GRAYSCALE if shape[-1] == 1 else cv2.IMREAD_COLOR_RGB
    if len(records) * math.prod(shape) > memory_bytes() // 4:
        raise broken(file.parent, f"{file.name} claims more than this machine's memory can hold")
    images = np.empty((len(records), *shape), np.uint8)
    labels = np.empty(len(records), np.int32)
    try:
        for index, record in enumerate(records):
            feature = parse(record).features.feature
            encoded = np.frombuffer(feature["image"].bytes_list.value[0], np.uint8)
            image = cv2.imdecode(encoded, flags)
            if image is None:
                raise ValueError("not an image")
            images[index] = image.reshape(shape)
            labels[index] = feature["label"].int64_list.value[0]
    except (IndexError, OverflowError, ValueError, DecodeError, cv2.error) as error:
        raise broken(file.parent, f"{file.name} holds an example that cannot be decoded") from error
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_names:
        raise broken(file.parent, f"{file.name} holds a label outside 0..{num_names - 1}")
    return images, labels
