"""Prepares a set of TFDS as ArrayRecord: python -m ensemble.data.prepare_dataset mnist.

This is the only place that imports TensorFlow. Run it on a machine with a network, and copy
`DATA_DIR/NAME`. A set that is there as TFRecord is converted, any other is downloaded. Needs
`pip install -r requirements-prepare.txt`.
"""

import argparse
import os
import ssl
import sys
import urllib.request
from pathlib import Path

from ensemble.data.tfds_sets import broken, data_directories, find_set, is_ready
from ensemble.errors import InputError, in_one_line

_CATALOG = "https://www.tensorflow.org/datasets/catalog"
_PROBE_SECONDS = 8


def prepare(name: str, data_dir: str | None) -> Path:
    """Returns the directory of a set, which is converted or downloaded if need be.

    A kill at any moment leaves nothing that is taken for a prepared set.

    Raises:
        InputError: there is no network, or the set is damaged.
    """
    place = data_directories(data_dir)[0]
    place.mkdir(parents=True, exist_ok=True)
    directory = find_set(name, data_dir)
    if directory is None:
        return _download(name, place)
    if not is_ready(directory):
        _convert(directory)
    return directory


def _download(name: str, data_dir: Path) -> Path:
    """Downloads and prepares by TFDS, which writes to `incomplete.*` and renames at the end."""
    import tensorflow_datasets as tfds  # Slow, and only who prepares a set needs it.

    try:
        urllib.request.urlopen(_CATALOG, timeout=_PROBE_SECONDS).close()
    except OSError as error:  # TFDS itself would retry for minutes.
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):  # It has certificates.
            raise InputError(
                f"{name} is not in {data_dir}, and {_CATALOG} cannot be reached "
                f"({in_one_line(error)}): prepare it on a machine with a network, and copy it"
            ) from error
    builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    # The MNIST family's files have equal names: in one directory each is taken for the other.
    builder.download_and_prepare(download_dir=data_dir / "downloads" / name)
    return Path(builder.data_dir)


def _convert(directory: Path) -> None:
    """Writes the TFRecord shards of a set as ArrayRecord beside them, each renamed when whole.

    The TFRecord set stays as it is, `dataset_info.json` included, for whoever reads it with TFDS.

    Raises:
        InputError: if a shard is damaged.
    """
    # TensorFlow is of requirements-prepare.txt, and never in a process that trains.
    import tensorflow as tf
    from array_record.python.array_record_module import ArrayRecordWriter

    for source in sorted(directory.glob("*.tfrecord-*")):
        target = source.with_name(source.name.replace(".tfrecord-", ".array_record-"))
        partial = target.with_name(f"incomplete.{target.name}")
        # One record per group, as TFDS writes them.
        writer = ArrayRecordWriter(str(partial), "group_size:1")
        try:
            for record in tf.data.TFRecordDataset(str(source)).as_numpy_iterator():
                writer.write(record)
        except tf.errors.DataLossError as error:
            raise broken(directory, f"{source.name} is damaged") from error
        finally:
            writer.close()
        partial.replace(target)


def main() -> int:
    """Prepares the named set; the last line on stdout says where it is, or what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="of a set of TFDS, such as mnist or emnist/letters")
    parser.add_argument("--data_dir", help="default: TFDS_DATA_DIR, else ~/tensorflow_datasets")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # A trainer may need the accelerator's memory.
    try:
        print(prepare(arguments.name, arguments.data_dir))
        return 0
    except InputError as error:
        print(error)
    except ImportError as error:
        print(f"preparing sets needs {error.name}: pip install -r requirements-prepare.txt")
    except Exception as error:  # TFDS and TensorFlow raise many types: one line instead.
        print(
            f"preparing the set failed: {type(error).__name__}: {in_one_line(error, 500)}; if it "
            "fails again, delete its folder in downloads first"
        )
    return 2


if __name__ == "__main__":
    sys.exit(main())
