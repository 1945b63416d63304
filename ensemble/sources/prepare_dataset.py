"""Prepares a set of TFDS as ArrayRecord: python -m ensemble.sources.prepare_dataset mnist.

This is the only place that imports TensorFlow. Training runs it as a child process when a set is
not prepared yet; run it by hand to prepare a set on a machine with a network, and copy
`DATA_DIR/NAME`. Needs `pip install -r requirements-prepare.txt`.
"""

import argparse
import importlib.util
import logging
import os
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

from ensemble import registry
from ensemble.entries import SourceEntry
from ensemble.errors import UserError, in_one_line
from ensemble.sources import tfds_records
from ensemble.storage.files import locked

logger = logging.getLogger("ensemble")

CATALOG = "https://www.tensorflow.org/datasets/catalog"
PROBE_SECONDS = 8.0
# What a proxy answers when it will not or cannot go on. Anything else came from the server.
PROXY_REFUSALS = (403, 407, 502, 503, 504)
COMMAND = (sys.executable, "-m", "ensemble.sources.prepare_dataset")


def find_or_prepare(name: str, data_dir: Path) -> Path:
    """The directory of a set, which is prepared first where it is not.

    Raises:
        UserError: what could not be done, in one line.
    """
    directory = tfds_records.find_prepared(name, data_dir)
    if directory is None:
        prepare_in_child(name, data_dir)
        directory = tfds_records.find_prepared(name, data_dir)
    if directory is None:
        raise UserError(f"{name} is still not in {data_dir} after it was prepared; see the log")
    return directory


def prepare_in_child(name: str, data_dir: Path) -> None:
    """Prepares a set in a child process, so that TensorFlow is never imported into this one.

    Raises:
        UserError: what the child could not do, in one line.
    """
    logger.info(
        "%s is not prepared as ArrayRecord in %s: preparing it in a child process (with a download "
        "it takes a minute or more)",
        name,
        data_dir,
    )
    command = [*COMMAND, name, f"--data_dir={data_dir}"]
    paths = [str(Path(__file__).absolute().parent.parent.parent), os.environ.get("PYTHONPATH", "")]
    child = subprocess.run(
        [command[0], "-P", *command[1:]],  # The current folder may hold a stranger's modules.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if child.returncode:
        lines = child.stdout.strip().splitlines()
        raise UserError(
            lines[-1]
            if child.returncode == 2 and lines
            else f"preparing {name} in {data_dir} ended with status {child.returncode}; "
            f"run `{' '.join(command)}` to see why"
        )
    logger.info("%s is prepared in %s", name, data_dir)


def prepare(name: str, data_dir: Path) -> None:
    """Makes `find_prepared(name, data_dir)` succeed: by conversion from TFRecord, or by download.

    A kill at any moment leaves nothing that is taken for a prepared set. Processes that prepare the
    same set wait for the first one.

    Raises:
        UserError: if there is no network, TensorFlow is not installed, or the set is damaged.
    """
    if tfds_records.find_prepared(name, data_dir):
        return
    if tfds_records.version_directory(name, data_dir) is None:
        check_reachable(name, data_dir)
    check_tensorflow(name)
    data_dir.mkdir(parents=True, exist_ok=True)
    with locked(data_dir / f".prepare_{name.replace('/', '_')}.lock"):
        if tfds_records.find_prepared(name, data_dir):
            return
        directory = tfds_records.version_directory(name, data_dir)
        if directory is None:
            _download(name, data_dir)
        else:
            _convert(directory)


def check_reachable(name: str, data_dir: Path) -> None:
    """Asks for the headers of one file of the download, through whatever proxy is set.

    TFDS itself would retry for minutes and then fail obscurely.

    Raises:
        UserError: if there is no answer within `PROBE_SECONDS`.
    """
    url = _entry(name).page or f"{CATALOG}/{name.partition('/')[0]}"
    reasons = ["no answer"]
    # A thread, as a name look-up has no timeout of its own.
    thread = threading.Thread(target=lambda: reasons.append(_unreachable_reason(url)), daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1)
    reason = reasons[-1]
    if reason:
        raise UserError(
            f"{name} is not in {data_dir} (set data_dir or TFDS_DATA_DIR if it is elsewhere) and "
            f"{url} cannot be reached ({reason}): run `python -m "
            f"ensemble.sources.prepare_dataset {name} "
            f"--data_dir=DIR` on a machine with a network and copy DIR/{name} to "
            f"{data_dir / name}; {_entry(name).instead} needs no download"
        )


def _entry(name: str) -> SourceEntry:
    """What is known of a set beside what TFDS knows."""
    return registry.SOURCES.built_in.get(name, SourceEntry(""))


def _unreachable_reason(url: str) -> str:
    """Why a URL gives no answer; '' if it does."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        return str(error) if error.code in PROXY_REFUSALS else ""
    except Exception as error:  # Sockets, TLS, proxies and malformed answers raise many types.
        reason = getattr(error, "reason", error)
        # The server answered; TFDS brings certificates of its own.
        if isinstance(reason, ssl.SSLCertVerificationError):
            return ""
        return in_one_line(reason)
    return ""


def check_tensorflow(name: str) -> None:
    """Raises UserError if what preparation needs is not installed."""
    for package in ("tensorflow", "tensorflow_datasets", "importlib_resources"):
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"preparing {name} as ArrayRecord needs {package}, which is not installed: "
                "pip install -r requirements-prepare.txt, or this package with its extra "
                f"'prepare' (training itself needs no TensorFlow); "
                f"{_entry(name).instead} needs no download"
            )


def _download(name: str, data_dir: Path) -> None:
    """Downloads and prepares by TFDS, which writes to `incomplete.*` and renames at the end."""
    import tensorflow_datasets as tfds  # Slow, and only who prepares a set needs it.

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError:
        raise UserError(f"TFDS has no set {name}; {CATALOG} lists them") from None
    if "/" not in name and builder.builder_config is not None:
        raise UserError(
            f"{name} has the configurations {', '.join(builder.builder_configs)}: choose one, as "
            f"{name}/{builder.builder_config.name}"
        )
    # The MNIST family's files have equal names: in one directory each is taken for the other.
    builder.download_and_prepare(download_dir=data_dir / "downloads" / name)


def _convert(directory: Path) -> None:
    """Writes the TFRecord shards of a set as ArrayRecord beside them, each renamed when whole.

    The TFRecord set stays as it is, `dataset_info.json` included, for whoever reads it with TFDS.

    Raises:
        UserError: if a shard is damaged.
    """
    # TensorFlow is of requirements-prepare.txt, and never in a process that trains.
    import tensorflow as tf
    from array_record.python.array_record_module import ArrayRecordWriter

    for source in sorted(directory.glob("*.tfrecord-*")):
        target = source.with_name(source.name.replace(".tfrecord-", ".array_record-"))
        partial = target.with_name(f"incomplete.{target.name}")
        partial.unlink(missing_ok=True)  # Through a link another file would be written.
        # One record per group, as TFDS writes them.
        writer = ArrayRecordWriter(str(partial), "group_size:1")
        try:
            for record in tf.data.TFRecordDataset(str(source)).as_numpy_iterator():
                writer.write(record)
        except tf.errors.DataLossError as error:
            raise tfds_records.broken(directory, f"{source.name} is damaged") from error
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
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # The trainer needs the accelerator's memory.
    name, data_dir = arguments.name, arguments.data_dir
    try:
        tfds_records.check_name(name)
        data_dir = tfds_records.data_directory(data_dir)
        prepare(name, data_dir)
    except UserError as error:
        print(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # TFDS and TensorFlow raise many types: one line instead.
        reason = in_one_line(error, 500)
        print(
            f"preparing {name} in {data_dir} failed: {type(error).__name__}: {reason}; run "
            f"again, and if that fails too delete {Path(data_dir) / 'downloads' / name} first"
        )
        return 2
    print(tfds_records.find_prepared(name, data_dir))
    return 0


if __name__ == "__main__":
    sys.exit(main())
