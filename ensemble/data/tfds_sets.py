"""Sets of images that TensorFlow Datasets (TFDS) prepared as ArrayRecord, read without TensorFlow.

A prepared set is a directory `DATA_DIR/NAME/VERSION`, or `DATA_DIR/NAME/CONFIG/VERSION`. TFDS reads
it (decision 0049); it is imported when a set is opened, for it takes half a second.

Four sets are known by their names, `mnist` and others: their training split is cut in order. Any
other, `tfds:NAME` or `tfds:NAME/CONFIG`, has its own splits `train`, `validation` and `test`; what
there is not is carved from `train` as for own data.
"""

import concurrent.futures
import importlib.util
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.dataset import carved, make_dataset
from ensemble.data.image_form import Size, other_size, resize_and_crop
from ensemble.data.own_arrays import check_size, local_path
from ensemble.data.source import Examples, Parts, Request, Source, Stored
from ensemble.data.splitting import SPLITS
from ensemble.errors import CorruptDataError, InputError, in_one_line
from ensemble.notes import note

_AT_ONCE = 4096  # Records.
_FEATURES = "tensorflow_datasets.core.features."
_HELD_OUT = {"mnist": 5_000, "fashion_mnist": 5_000, "kmnist": 5_000, "cifar10": 2_500}
"""Examples for validation, and as many for calibration: the last of TFDS's training split."""


def data_directories(data_dir: str | None) -> list[Path]:
    """Returns where sets are looked for: `data_dir`, $TFDS_DATA_DIR, ~/tensorflow_datasets.

    Raises:
        InputError: a place is not on a disk.
    """
    places = (data_dir, os.environ.get("TFDS_DATA_DIR"), "~/tensorflow_datasets")
    return [local_path(place).absolute() for place in places if place]


def find_set(name: str, data_dir: str | None) -> Path | None:
    """The newest version's directory of a set, whole or not; None if there is none.

    Args:
        name: as `config.dataset` has it, `NAME` or `tfds:NAME`.
        data_dir: as of `data_directories`.

    Raises:
        InputError: there can be no such set.
    """
    set_name = name.removeprefix("tfds:")
    if not re.fullmatch(r"\w+(/(?!\d+\.\d+\.\d+$)\w([\w.-]*\w)?)?", set_name, re.ASCII):
        raise InputError(
            f"{set_name!r} is no name of a set in TFDS: these are NAME or NAME/CONFIG of letters, "
            "digits and _, such as mnist or emnist/letters; the newest version here is taken"
        )
    for place in data_directories(data_dir):
        paths = (place / set_name).glob("*.*.*")
        if versions := [one for one in paths if re.fullmatch(r"\d+\.\d+\.\d+", one.name)]:
            return max(versions, key=lambda path: [*map(int, path.name.split("."))])
    return None


def is_ready(directory: Path) -> bool:
    """Whether all files of a set are there as ArrayRecord, else as TFRecord.

    Raises:
        InputError: they are neither, or `dataset_info.json` cannot be read.
    """
    try:
        info = json.loads((directory / "dataset_info.json").read_text())
        shards = [
            f"{info['name']}-{one['name']}.{{}}-{k:05d}-of-{len(one['shardLengths']):05d}"
            for one in info["splits"]
            for k in range(len(one.get("shardLengths", ())))
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"dataset_info.json cannot be read ({in_one_line(error)})"
        raise broken(directory, what) from error

    def absent(form: str) -> list[str]:
        names = [name.format(form) for name in shards]
        return [name for name in names if not (directory / name).exists()]

    missing = absent("array_record")
    if missing and absent("tfrecord"):
        raise broken(directory, f"{missing[0]} is missing")
    return not missing


def broken(directory: Path, what: str) -> CorruptDataError:
    """The error for a set that cannot be read."""
    return CorruptDataError(
        f"{directory} is half-prepared or damaged: {what}",
        "delete this directory, and prepare the set anew or copy it from elsewhere",
    )


def open_set(name: str, data_dir: str | None) -> "PreparedSet":
    """Opens a set.

    Args:
        name: as of `find_set`.
        data_dir: as of `data_directories`.

    Raises:
        InputError: it is not there or not prepared as ArrayRecord, or as `PreparedSet`.
    """
    directory = find_set(name, data_dir)
    if directory is not None and is_ready(directory):
        return PreparedSet(directory)
    set_name = name.removeprefix("tfds:")
    place = data_directories(data_dir)[0]
    why = f"{name} is not in {place}: set config.data_dir or TFDS_DATA_DIR to where it is, or"
    if directory is not None:
        place = directory.parents[1 + set_name.count("/")]
        why = f"{directory} is whole, but as TFRecord, which only TensorFlow reads:"
    elif found := sorted(path.parent.name for path in (place / set_name).glob("*/*.*.*")):
        raise InputError(
            f"{name} has configurations, here {', '.join(found)}: choose one, such as "
            f"{name}/{found[0]}"
        )
    raise InputError(
        f"{why} prepare it as ArrayRecord by `python -m ensemble.data.prepare_dataset {set_name} "
        f"--data_dir={place}`, which needs requirements-prepare.txt and, for a download, a network"
    )


class PreparedSet:
    """A set as TFDS describes it.

    Attributes:
        directory: of the set.
        features: by name, of an example.
        supervised_keys: names of what is learned from, and of what is learned; None if it has none.
        sizes: examples of each split that has any.

    Raises:
        InputError: TFDS is not installed, the set is damaged, or reading it would run code of its
            own.
    """

    def __init__(self, directory: Path):
        if importlib.util.find_spec("tensorflow_datasets") is None:
            raise InputError(
                "sets of TFDS are read by tensorflow-datasets, which is not installed: pip install "
                "'flax-ensembles[tfds]', or -r requirements-tfds.txt in the repository"
            )
        import tensorflow_datasets as tfds  # Half a second, and only who has such sets has it.

        self.directory = directory
        try:
            for name in _classes((directory / "features.json").read_text()):
                if not name.startswith(_FEATURES):  # TFDS would import its module.
                    raise ValueError(f"{name} is no feature of TFDS, and would run code")
            builder = tfds.builder_from_directory(directory)
            info = builder.info
            # A set that was converted still says tfrecord.
            info.set_file_format("array_record", override=True, override_if_initialized=True)
            self.features = info.features
            self.supervised_keys = info.supervised_keys
            self.sizes = {
                split: int(one.num_examples)
                for split, one in info.splits.items()
                if one.num_examples
            }
            method = tfds.decode.DeserializeMethod.RAW_BYTES
            splits = {split: split for split in self.sizes}
            self._sources = builder.as_data_source(splits, deserialize_method=method)
        except Exception as error:  # TFDS raises many types.
            raise broken(directory, f"TFDS cannot read it ({in_one_line(error)})") from error

    def examples(self, split: str, rows: Sequence[int]) -> Iterator[Any]:
        """Yields the fields of examples by their names; one that is damaged has none.

        TFDS has a parser of examples, too: MNIST takes it 2.6 times the CPU of all this.
        """
        from google.protobuf.message import DecodeError  # As in `__init__`.
        from tensorflow_datasets.proto import tf_example_pb2

        for start in range(0, len(rows), _AT_ONCE):
            for record in self._read(split, rows[start : start + _AT_ONCE]):
                try:  # One at a time: kept all, they take twice as long.
                    yield tf_example_pb2.Example.FromString(record).features.feature
                except DecodeError:
                    yield {}

    def _read(self, split: str, rows: Sequence[int]) -> Sequence[bytes]:
        """Serialised examples; one that is damaged is empty."""
        try:
            return self._sources[split].__getitems__(rows)
        except (RuntimeError, ValueError, IndexError):
            return [b""] if len(rows) == 1 else [self._read(split, [row])[0] for row in rows]


def _classes(text: str) -> list[str]:
    """The names of Python classes in `features.json`, in any form that TFDS reads."""
    found = []

    def look(node):
        for key, value in node.items():
            if isinstance(value, str):
                if key in ("pythonClassName", "python_class_name", "type"):
                    found.append(value)
                with suppress(ValueError):  # Some have a text that is JSON again.
                    json.loads(value, object_hook=look)
        return node

    json.loads(text, object_hook=look)
    return found


def _decode(encoded: bytes, is_grey: bool, size: Size | None) -> NDArray | None:
    """Decodes an image, uint8 [H, W] or [H, W, 3]; returns None if it is damaged."""
    import cv2  # Only for such sets: it takes a third of Pillow's time.

    flags = cv2.IMREAD_GRAYSCALE if is_grey else cv2.IMREAD_COLOR_RGB
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags) if encoded else None
    if image is None or size is None:
        return image
    import PIL.Image  # Only where images are resized.

    return np.asarray(resize_and_crop(PIL.Image.fromarray(image), size))


def _read_split(
    prepared: PreparedSet, keys: tuple[str, str], split: str, size: Size | None, in_memory: bool
) -> Examples:
    """Reads the images and labels of a split, -1 where there is none.

    Args:
        prepared: The set.
        keys: Keys of the image and the class in an example.
        split: Split of TFDS.
        size: (height, width) to which images are brought by `image_form.resize_and_crop`; None:
            they have one size.
        in_memory: If False, images [N, H, W, C] are decoded when they are read.

    Raises:
        InputError: A record cannot be read, or memory cannot hold the images.
    """
    *sides, channels = prepared.features[keys[0]].shape
    labels = np.zeros(prepared.sizes[split], np.int32)

    def fault(row: int) -> CorruptDataError:
        return broken(prepared.directory, f"record {row} of {split} cannot be decoded")

    def encoded(rows: Sequence[int]) -> Iterator[bytes]:
        for row, fields in zip(rows, prepared.examples(split, rows), strict=True):
            try:
                label = fields[keys[1]].int64_list.value[0]
                content = fields[keys[0]].bytes_list.value[0]
            except LookupError:  # Its image cannot be decoded, which is told then.
                label = 0
                content = b""
            labels[row] = label
            yield content

    decode = partial(_decode, is_grey=channels == 1, size=size)
    is_any_size = size is not None or None in sides
    if size is None and None in sides:
        first = decode(next(encoded([0])))
        if first is None:
            raise fault(0)
        sides = first.shape[:2]
    example = (*(size or sides), 1 if channels == 1 else 3)

    def read(rows: NDArray) -> NDArray:
        images = np.empty((len(rows), *example), np.uint8)
        places = rows.tolist()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            # Images of a known size are mostly small: they decode in 8 microseconds, and threads
            # that hand over the interpreter lock that often are no faster.
            apply = pool.map if is_any_size else map
            for i, image in enumerate(apply(decode, encoded(places))):
                if image is None:
                    raise fault(places[i])
                if image.shape[:2] != example[:2]:
                    what = f"{prepared.directory}: record {places[i]} of {split}"
                    raise other_size(what, image.shape, example)
                images[i] = image.reshape(example)
        return images

    every = np.arange(len(labels))
    images = Stored(every, example, np.dtype(np.uint8), read, is_encoded=True)
    if in_memory:
        check_size([images], str(prepared.directory))
        return Examples(read(every), labels)
    deque(encoded(range(len(labels))), 0)  # Only their labels are kept.
    return Examples(images, labels)


def _keys_of(prepared: PreparedSet) -> tuple[str, str]:
    """The keys of image and class: what TFDS learns from what, else the only ones of their kind.

    Raises:
        InputError: the set is not of images of 8 bits with one class label each.
    """
    features = sorted(prepared.features.items())
    kinds = [(key, type(one).__name__) for key, one in features]
    images = [key for key, one in features if getattr(one, "np_dtype", None) == np.uint8]
    pairs = [
        (image, label)
        for image, kind in kinds
        for label, other in kinds
        if (kind, other) == ("Image", "ClassLabel") and image in images
    ]
    first, *_, last = prepared.supervised_keys or ("", "")
    chosen = [one for one in pairs if one == (first, last)] or pairs
    if len(chosen) == 1:
        return chosen[0]
    there = ", ".join(f"{key} ({kind})" for key, kind in kinds)
    raise InputError(
        f"{prepared.directory} is not a set of images of 8 bits per channel with one class label "
        f"each, it holds {in_one_line(there)}; take another set, or give arrays as npz:PATH"
    )


def load_tfds(name: str, request: Request) -> Source:
    """Reads any set of images and class labels.

    Raises:
        InputError: The set is not there, is of another kind, cannot be read, or takes too much
            memory.
    """
    given = given_tfds(name, request, in_memory=True)
    if name not in _HELD_OUT and "train" in given.parts:
        return carved(given, name, request)
    splits = dict(given.parts)
    if request.hold_out and "train" in splits:
        cuts = [-2 * _HELD_OUT[name], -_HELD_OUT[name]]
        parts = zip(*(np.split(array, cuts) for array in splits["train"]), strict=True)
        splits = dict(zip(SPLITS, [*map(Examples._make, parts), splits["test"]], strict=True))
    return make_dataset(name, splits, given.class_names or (), 1 / 255, True)


def given_tfds(name: str, request: Request, in_memory: bool = False) -> Parts:
    """Returns the examples of any set of images and class labels.

    Args:
        name: As of `find_set`.
        request: How they are asked for.
        in_memory: If False, images are decoded when they are read.

    Raises:
        InputError: As `load_tfds`.
    """
    prepared = open_set(name, request.data_dir)
    keys = _keys_of(prepared)
    class_names = tuple(prepared.features[keys[1]].names)
    parts = {}
    only_test = request.only_test and "test" in prepared.sizes
    for split in ["test"] if only_test else [one for one in SPLITS if one in prepared.sizes]:
        part = _read_split(prepared, keys, split, request.size, in_memory)
        if part.targets.max() >= len(class_names):
            raise broken(prepared.directory, f"a label of {split} is beyond {len(class_names) - 1}")
        if part.targets.min() >= 0:
            parts[split] = part
        else:  # They are kept secret.
            note(f"{name}: the split {split} has no labels, and is not used.")
    needed = "test" if only_test else "train"
    if needed not in parts:
        raise InputError(f"{name} has no split {needed!r} with labels; take another set")
    return Parts(parts, class_names=class_names)
