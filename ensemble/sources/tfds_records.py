"""Reads sets that TensorFlow Datasets (TFDS) prepared as ArrayRecord, without TensorFlow.

A prepared set is a directory `DATA_DIR/NAME/VERSION`, or `DATA_DIR/NAME/CONFIG/VERSION`, with
`dataset_info.json` (splits and their shard lengths) and shards
`NAME-SPLIT.array_record-00000-of-00001` of `tf.train.Example` protos. `tfds_images` decodes those
of image sets.
"""

import functools
import json
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from ensemble.errors import Damaged, UserError, in_one_line
from ensemble.storage.paths import is_remote

_MAX_TEXT_BYTES = 10_000_000  # Of a JSON file or the names of classes; they have kilobytes.
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


def data_directory(data_dir: str | None) -> Path:
    """Where TFDS sets lie: `data_dir`, else TFDS_DATA_DIR, else ~/tensorflow_datasets.

    Raises:
        UserError: if it is not a local path.
    """
    path = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if is_remote(path):
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
    info = read_json(directory / "dataset_info.json")
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
                suffix=f"{index:05d}-of-{len(split.get('shardLengths', [])):05d}",
                num_examples=int(length),
            )
            for split in info["splits"]
            for index, length in enumerate(split.get("shardLengths", []))
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

    Args:
        name: of the data set, as `config.dataset` has it.
        data_dir: of the run.

    Raises:
        UserError: if the set is there in part.
    """
    if data_dir and find_prepared(set_name(name), data_directory(data_dir)) is not None:
        return data_dir
    return None


def set_name(name: str) -> str:
    """What TFDS calls a set that `config.dataset` has as `NAME` or `tfds:NAME`."""
    return name.removeprefix("tfds:")


def check_name(name: str) -> None:
    """Refuses what cannot be the name of a set in TFDS, and might lead elsewhere.

    Raises:
        UserError: as said.
    """
    configuration = r"(?!\d+\.\d+\.\d+$)\w([\w.-]*\w)?"
    if not re.fullmatch(rf"\w+(/{configuration})?", name, re.ASCII):
        raise UserError(
            f"{name!r} is no name of a set in TFDS: these are NAME or NAME/CONFIG of letters, "
            "digits and _, such as mnist or emnist/letters; the newest version here is taken"
        )


def count_examples(directory: Path) -> dict[str, int]:
    """Examples of each split that `dataset_info.json` promises.

    Raises:
        UserError: as `read_shards`.
    """
    counts: dict[str, int] = {}
    for shard in read_shards(directory):
        counts[shard.split] = counts.get(shard.split, 0) + shard.num_examples
    return counts


def broken(directory: Path, what: str) -> Damaged:
    """The error for a set that cannot be read."""
    return Damaged(
        f"{directory} is half-prepared or damaged: {what}",
        "delete this directory, and the set is prepared anew by the next run (which needs a "
        "network) or can be copied from elsewhere",
    )


def read_json(file: Path) -> Any:
    """Reads a JSON file of a set.

    Raises:
        UserError: it is missing, or none, or too large.
    """
    if not file.is_file():
        raise broken(file.parent, f"{file.name} is missing")
    try:
        return json.loads(read_text(file))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise broken(file.parent, f"{file.name} is not readable JSON") from error


def read_text(file: Path, errors: str = "strict") -> str:
    """Reads a text file of a set.

    Raises:
        UserError: it is too large.
    """
    if file.stat().st_size > _MAX_TEXT_BYTES:
        raise broken(file.parent, f"{file.name} has more than {_MAX_TEXT_BYTES:,} bytes")
    return file.read_text(errors=errors)


class ArrayRecordFile:
    """A file of records, which is opened when it is first read.

    Args:
        path: of the file.
        num_examples: that it holds.
    """

    def __init__(self, path: Path, num_examples: int):
        self.path, self.num_examples = path, num_examples
        self._lock = threading.Lock()  # A reader is of one thread at a time.
        self._reader: Any = None

    def read(self, rows: Sequence[int] | None = None) -> list[bytes]:
        """Some records, or all, checked against their number.

        Raises:
            UserError: the file is damaged, or another.
        """
        from array_record.python.array_record_module import (
            ArrayRecordReader,
        )  # Only where they are.

        try:
            with self._lock:
                reader, self._reader = self._reader, None  # One that fails is not asked again.
                reader = reader or ArrayRecordReader(str(self.path))
                records = reader.read_all() if rows is None else reader.read([*rows])
                found = reader.num_records()
                self._reader = reader
        except (RuntimeError, ValueError, IndexError) as error:
            reason = in_one_line(error)
            what = f"{self.path.name} cannot be read ({reason})"
            raise broken(self.path.parent, what) from error
        if found != self.num_examples:
            raise broken(
                self.path.parent,
                f"{self.path.name} holds {found} examples, dataset_info.json says "
                f"{self.num_examples}",
            )
        return list(records)


def read_array_record(file: Path, num_examples: int) -> list[bytes]:
    """All records of one file, checked against their number."""
    return ArrayRecordFile(file, num_examples).read()


@functools.cache
def example_class() -> Any:
    """The message class of `tf.train.Example`, in a pool of its own: TensorFlow has one, too."""
    schema = text_format.Parse(EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(schema.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tfds_records.Example"))
