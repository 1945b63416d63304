"""Finds sets that TensorFlow Datasets (TFDS) prepared, and reads their records.

A prepared set is a directory `DATA_DIR/NAME/VERSION`, or `DATA_DIR/NAME/CONFIG/VERSION`. TFDS reads
it, without TensorFlow (decision 0049); it is imported when a set is opened, for it takes half a
second. `tfds_images` decodes the records of image sets.
"""

import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ensemble.errors import Damaged, UserError, in_one_line
from ensemble.storage.paths import is_remote

_MAX_TEXT_BYTES = 10_000_000  # Of a JSON file or the names of classes; they have kilobytes.
_FEATURES = "tensorflow_datasets.core.features."


def data_directory(data_dir: str | None) -> Path:
    """The folder of TFDS sets: `data_dir`, else TFDS_DATA_DIR, else ~/tensorflow_datasets.

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


def missing_files(directory: Path, file_format: str) -> list[str]:
    """Names of files of a format that `dataset_info.json` promises and that are not there.

    Args:
        directory: of the set.
        file_format: `array_record` or `tfrecord`.

    Raises:
        UserError: if `dataset_info.json` is absent or cannot be understood.
    """
    info = _read_json(directory / "dataset_info.json")
    try:
        numbers = {one["name"]: len(one.get("shardLengths", [])) for one in info["splits"]}
        names = [
            f"{info['name']}-{split}.{file_format}-{index:05d}-of-{number:05d}"
            for split, number in numbers.items()
            for index in range(number)
        ]
        missing = [name for name in names if not (directory / name).is_file()]
    except (AttributeError, KeyError, TypeError, OSError) as error:
        raise broken(directory, "dataset_info.json does not list splits and shards") from error
    if not names:
        raise broken(directory, "dataset_info.json lists no shards")
    return missing


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
    missing = missing_files(directory, "array_record")
    if not missing:
        return directory
    if not missing_files(directory, "tfrecord"):
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


def broken(directory: Path, what: str) -> Damaged:
    """The error for a set that cannot be read."""
    return Damaged(
        f"{directory} is half-prepared or damaged: {what}",
        "delete this directory, and the set is prepared anew by the next run (which needs a "
        "network) or can be copied from elsewhere",
    )


def _read_json(file: Path) -> Any:
    """Reads a JSON file of a set.

    Raises:
        UserError: it is missing, or none, or too large.
    """
    if not file.is_file():
        raise broken(file.parent, f"{file.name} is missing")
    _check_length(file)
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise broken(file.parent, f"{file.name} is not readable JSON") from error


def _check_length(file: Path) -> None:
    if not file.is_file():  # A pipe would be read for ever.
        raise broken(file.parent, f"{file.name} is no file")
    if file.stat().st_size > _MAX_TEXT_BYTES:
        raise broken(file.parent, f"{file.name} has more than {_MAX_TEXT_BYTES:,} bytes")


def check_installed() -> None:
    """Raises UserError if TFDS is not installed: the wheel has it as an extra."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        raise UserError(
            "sets of TFDS are read by tensorflow-datasets, which is not installed: "
            "pip install 'flax-ensembles[tfds]', or -r requirements-tfds.txt in the repository"
        )


class PreparedSet:
    """A prepared set as TFDS describes it.

    Attributes:
        directory: `DATA_DIR/NAME/VERSION`, as from `find_prepared`.
        features: by name, of an example.
        supervised_keys: names of what is learned from, and of what is learned; None if it has none.
        sizes: examples of each split that has any.

    Raises:
        UserError: TFDS is not installed, the set is damaged, or reading it would run code of its
            own.
    """

    def __init__(self, directory: Path):
        check_installed()
        import tensorflow_datasets as tfds  # Half a second, and only who has such sets has it.

        self.directory = directory
        for file in [*directory.glob("*.json"), *directory.glob("*.txt")]:
            _check_length(file)
        content = _read_json(directory / "features.json")
        try:
            for name in _classes(content):
                # TFDS imports the module that a feature names.
                module = name.rpartition(".")[0]
                if not module.startswith(_FEATURES) or module not in sys.modules:
                    raise UserError(
                        f"{directory} has a feature of the class {in_one_line(name, 80)}, which is "
                        f"not of {_FEATURES.rstrip('.')}, and would run code: take another set"
                    )
            self._builder = tfds.builder_from_directory(directory)
            # A set that was converted still says tfrecord.
            self._builder.info.set_file_format(
                "array_record", override=True, override_if_initialized=True
            )
            info = self._builder.info
            self.features: dict[str, Any] = dict(info.features)
            self.supervised_keys: Any = info.supervised_keys
            splits = {split: one for split, one in info.splits.items() if one.num_examples}
            self.sizes = {split: int(one.num_examples) for split, one in splits.items()}
            self._files = {
                split: [*zip(map(Path, one.filepaths), one.shard_lengths, strict=True)]
                for split, one in splits.items()
            }
        except UserError:
            raise
        except Exception as error:  # TFDS raises many types.
            raise broken(directory, f"TFDS cannot read it ({in_one_line(error)})") from error
        for file in (file for files in self._files.values() for file, _ in files):
            if file.parent != directory:
                raise broken(directory, f"its file {in_one_line(file, 200)} would lie elsewhere")
            if not file.is_file():
                raise broken(directory, f"{file.name} is missing")

    def records(self, split: str) -> "Records":
        """The records of a split.

        Raises:
            UserError: it has none, or a file is damaged.
        """
        if split not in self.sizes:
            raise broken(self.directory, f"its split {split} has no examples")
        return Records(self._builder, split, self._files[split])


class Records:
    """The serialised examples of a split.

    Attributes:
        parse: makes a message, `tf.train.Example`, of a record.

    Args:
        builder: of TFDS.
        split: its name.
        files: that it lies in, and how many examples each is to have.

    Raises:
        UserError: a file is damaged.
    """

    def __init__(self, builder: Any, split: str, files: Sequence[tuple[Path, int]]):
        # As in `PreparedSet`.
        from tensorflow_datasets import decode
        from tensorflow_datasets.core.file_adapters import ArrayRecordFileAdapter
        from tensorflow_datasets.proto import tf_example_pb2

        self.parse = tf_example_pb2.Example.FromString
        for file, length in files:
            try:
                found = ArrayRecordFileAdapter.num_examples(file)
            except (RuntimeError, ValueError, OSError) as error:
                what = f"{file.name} cannot be read ({in_one_line(error)})"
                raise broken(file.parent, what) from error
            if found != length:
                what = f"{file.name} holds {found} examples, dataset_info.json says {length}"
                raise broken(file.parent, what)
        self._split, self._files = split, files
        raw = decode.DeserializeMethod.RAW_BYTES
        self._source = builder.as_data_source(split, deserialize_method=raw)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """Reads records by their numbers.

        Raises:
            UserError: the file is damaged.
        """
        try:
            return list(self._source.__getitems__(rows))
        except (RuntimeError, ValueError, IndexError) as error:
            what = f"its split {self._split} cannot be read ({in_one_line(error)})"
            raise broken(self._files[0][0].parent, what) from error

    def place(self, row: int) -> str:
        """The place of a record: its number and its file."""
        for file, length in self._files:
            if row < length:
                return f"record {row} of {file.name}"
            row -= length
        raise IndexError(row)


def _classes(node: Any) -> Iterator[str]:
    """Yields the names of Python classes in `features.json`, in any form that TFDS reads."""
    if isinstance(node, str):
        # Some features have their own in a text that is JSON again.
        with contextlib.suppress(ValueError):
            yield from _classes(json.loads(node)) if node.lstrip()[:1] in ("{", "[") else ()
    elif isinstance(node, list):
        for one in node:
            yield from _classes(one)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("pythonClassName", "python_class_name", "type") and isinstance(value, str):
                yield value
            else:
                yield from _classes(value)
