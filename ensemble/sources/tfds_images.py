"""Decodes prepared TFDS sets of images and class labels, without TensorFlow.

What a set holds, it says itself: `features.json` the features of an example, with the size of
images and the number of classes, `dataset_info.json` which of them is learned from which, and
`LABEL.labels.txt` the names of classes, where they have any.
"""

import concurrent.futures
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from ensemble.errors import Damaged, UserError, in_one_line
from ensemble.sources import image_form
from ensemble.sources.image_memory import stated_pixels, threads_for
from ensemble.sources.tfds_records import (
    ArrayRecordFile,
    broken,
    example_class,
    read_array_record,
    read_json,
    read_shards,
    read_text,
)
from ensemble.storage.memory import memory_bytes

_AT_ONCE = 1024  # Records whose labels are read together.
_MAX_SIDE, _MAX_CLASSES = 2**16, 2**17  # Of an image in pixels; of a set.


class Records(NamedTuple):
    """A prepared set in memory.

    Attributes:
        splits: by TFDS split name, images uint8 `[N, H, W, C]` and labels int32 `[N]`.
        class_names: one name per class.
    """

    splits: dict[str, tuple[np.ndarray, np.ndarray]]
    class_names: tuple[str, ...]


class ImageFeatures(NamedTuple):
    """Of a set for image classification.

    Attributes:
        image: the key of the image in an example.
        label: the key of its class.
        size: (height, width) of all images in pixels; None where they may differ.
        num_channels: that the images are read with, 1 or 3.
        class_names: one per class; '0', '1', ... where they have none.
    """

    image: str
    label: str
    size: tuple[int, int] | None
    num_channels: int
    class_names: tuple[str, ...]

    def shape(self, size: tuple[int, int] | None = None) -> tuple[int, ...] | None:
        """(H, W, C) of the images if they are resized to `size`; None where they may differ."""
        sides = size or self.size
        return (*sides, self.num_channels) if sides else None


def read_records(
    directory: Path,
    splits: Sequence[str] = ("train", "test"),
    size: tuple[int, int] | None = None,
    lowest_label: int = 0,
) -> Records:
    """Reads and decodes a prepared set: MNIST's 70,000 images in 1.3 s.

    Args:
        directory: `DATA_DIR/NAME/VERSION`, as from `find_prepared`.
        splits: which to read.
        size: (height, width) to which images are brought by `image_form.resize_and_crop`; None:
            they have one size.
        lowest_label: -1 where a split may be without labels.

    Raises:
        UserError: the set is of another kind, its images differ in size, or a file is damaged or
            does not hold what it should.
    """
    features = read_features(directory)
    form = _Form(features, size, features.shape(size), lowest_label)
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for shard in read_shards(directory):
        if shard.split not in splits or not shard.num_examples:
            continue
        file = directory / shard.file_name("array_record")
        records = read_array_record(file, shard.num_examples)
        images, labels = _decode(records, form, file)
        form = form._replace(shape=images.shape[1:])
        parts.setdefault(shard.split, []).append((images, labels))
    return Records(
        {
            split: (np.concatenate(images), np.concatenate(labels))
            for split, pairs in parts.items()
            for images, labels in [zip(*pairs, strict=True)]
        },
        features.class_names,
    )


class PreparedImages:
    """The images [N, H, W, C] of a split, which are decoded when they are read.

    Args:
        directory: of the prepared set.
        features: of the set.
        split: of TFDS.
        size: as of `read_records`.

    Raises:
        UserError: the set is damaged.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        directory: Path,
        features: ImageFeatures,
        split: str,
        size: tuple[int, int] | None = None,
    ):
        self._files = [
            ArrayRecordFile(directory / one.file_name("array_record"), one.num_examples)
            for one in read_shards(directory)
            if one.split == split and one.num_examples
        ]
        self._ends = np.cumsum([file.num_examples for file in self._files], dtype=np.int64)
        self._form = _Form(features, size, features.shape(size), lowest_label=-1)
        if self._form.shape is None and self._files:
            self._form = self._form._replace(
                shape=_decoded(self._files[0], [0], self._form).shape[1:]
            )
        num_examples = sum(file.num_examples for file in self._files)
        self.shape = (num_examples, *(self._form.shape or (0, 0, 0)))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | np.ndarray, /) -> np.ndarray:
        """Decodes images [n, H, W, C].

        Raises:
            UserError: naming the first record that cannot be decoded.
        """
        chosen = np.arange(len(self))[where]
        order = np.argsort(chosen, kind="stable")  # The disk is read forwards.
        images = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        bounds = np.searchsorted(chosen[order], self._ends)
        for i, (start, end) in enumerate(zip([0, *bounds[:-1]], bounds, strict=True)):
            if start < end:
                first = self._ends[i] - self._files[i].num_examples
                rows = (chosen[order[start:end]] - first).tolist()
                images[order[start:end]] = _decoded(self._files[i], rows, self._form)
        return images

    def labels(self) -> np.ndarray:
        """The labels int32 [N]; 0 where a record cannot be read, which reading its image tells."""
        parse, key = example_class().FromString, self._form.features.label
        found = []
        for file in self._files:
            for low in range(0, file.num_examples, _AT_ONCE):
                for record in file.read(range(low, min(low + _AT_ONCE, file.num_examples))):
                    try:
                        found.append(parse(record).features.feature[key].int64_list.value[0])
                    except (DecodeError, IndexError):
                        found.append(0)
        names = self._form.features.class_names
        if found and not -1 <= min(found) <= max(found) < len(names):
            directory = self._files[0].path.parent
            raise broken(directory, f"it holds a label outside 0..{len(names) - 1}")
        return np.array(found, np.int32)


def read_features(directory: Path) -> ImageFeatures:
    """Reads `features.json`, and the file that names the classes.

    Args:
        directory: `DATA_DIR/NAME/VERSION`.

    Raises:
        UserError: the set is damaged, or is not of images with one class label each.
    """
    content = read_json(directory / "features.json")
    try:
        fields = dict(content["featuresDict"]["features"])
        image, label = _keys(fields, directory)
        described = fields[image]["image"]
        dimensions = [int(length) for length in described["shape"]["dimensions"]]
        num_names = int(fields[label]["classLabel"]["numClasses"])
        dtype = described.get("dtype", "uint8")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise broken(directory, "features.json describes no image and label") from error
    if dtype != "uint8":
        raise UserError(
            f"{directory} has images of {in_one_line(dtype, 30)}, not of 8 bits per channel; take "
            "another set, or give arrays as npz:PATH"
        )
    *sides, num_channels = dimensions or [0]
    are_sides = len(sides) == 2 and all(n == -1 or 0 < n <= _MAX_SIDE for n in sides)
    if not are_sides or num_channels not in (-1, 1, 3, 4):
        shape = tuple(dimensions)
        raise broken(directory, f"features.json has images of shape {shape}, not [H, W, 1 or 3]")
    if not 2 <= num_names <= _MAX_CLASSES:
        raise broken(directory, f"features.json has {num_names} classes")
    return ImageFeatures(
        image=image,
        label=label,
        size=None if -1 in sides else (sides[0], sides[1]),
        num_channels=1 if num_channels == 1 else 3,
        class_names=_class_names(directory / f"{label}.labels.txt", num_names),
    )


def _keys(fields: Mapping[str, Any], directory: Path) -> tuple[str, str]:
    """The keys of image and label: those that TFDS learns by, else the only ones of their kind."""
    supervised = _supervised_keys(directory)
    images = [key for key, one in fields.items() if "image" in one]
    labels = [key for key, one in fields.items() if "classLabel" in one]
    if supervised and supervised[0] in images and supervised[-1] in labels:
        return supervised[0], supervised[-1]
    if len(images) == len(labels) == 1:
        return images[0], labels[0]
    kinds = [f"{key} ({_kind(one)})" for key, one in fields.items()]
    raise UserError(
        f"{directory} is not a set of images with one class label each, it holds "
        f"{in_one_line(', '.join(kinds))}; take another set, or give arrays as npz:PATH"
    )


def _kind(field: Mapping[str, Any]) -> str:
    """What TFDS calls a feature."""
    return str(field.get("pythonClassName", next(iter(field), "nothing"))).split(".")[-1]


def _supervised_keys(directory: Path) -> list[str]:
    """The keys of input and target by `dataset_info.json`; empty where it has none."""
    keys = read_json(directory / "dataset_info.json").get("supervisedKeys", {})
    if "tuple" in keys:
        return [str(one.get("featureKey")) for one in keys["tuple"]["items"]]
    return [str(keys[key]) for key in ("input", "output") if key in keys]


def _class_names(file: Path, num_names: int) -> tuple[str, ...]:
    if not file.is_file():
        return tuple(str(label) for label in range(num_names))
    names = tuple(read_text(file, "replace").split("\n"))[:num_names]
    if len(names) != num_names or not all(names):
        raise broken(file.parent, f"{file.name} does not name {num_names} classes")
    return names


class _Form(NamedTuple):
    """What the images of a set are brought to.

    Attributes:
        features: of the set.
        size: to which images are resized; None for their own.
        shape: (H, W, C) that they then have; None where the first one says it.
        lowest_label: that there may be.
    """

    features: ImageFeatures
    size: tuple[int, int] | None
    shape: tuple[int, ...] | None
    lowest_label: int


def _decoded(file: ArrayRecordFile, rows: Sequence[int], form: _Form) -> np.ndarray:
    """Images [n, H, W, C] of some records of a file; one that cannot be decoded is named."""
    try:
        return _decode(file.read(rows), form, file.path)[0]
    except UserError as error:
        if len(rows) == 1:
            what = f"record {rows[0]} of {file.path.name}: "
            if isinstance(error, Damaged):
                raise Damaged(what + error.what, error.remedy) from error
            raise UserError(what + str(error)) from error
        for row in rows:
            _decoded(file, [row], form)
        raise


def _decode(records: list[bytes], form: _Form, file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Decodes serialised examples.

    Returns:
        images uint8 `[N, H, W, C]` and labels int32 `[N]`.
    """
    import cv2  # Only where records are decoded: who reads digits does without.

    features, shape = form.features, form.shape
    if shape is not None:
        _check_claim(len(records), shape, file)
    images, labels = np.empty((0, *(shape or (0, 0, 0))), np.uint8), list[int]()
    try:
        with contextlib.ExitStack() as stack:
            decode = _decoder(form)
            if form.size is None and features.size is not None:
                # One thread: images this small decode in 8 microseconds, and threads that hand
                # over the interpreter lock that often are no faster.
                decoded: Iterable[tuple[np.ndarray, int]] = map(decode, records)
            else:
                pixels = (stated_pixels(_parsed(record, features)[0]) for record in records)
                what = f"the largest image of {file.name}"
                num_threads = threads_for(max(pixels, default=0), what)
                pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(num_threads))
                decoded = pool.map(decode, records)
            for index, (image, label) in enumerate(decoded):
                if shape is None:
                    shape = (*image.shape[:2], features.num_channels)
                    _check_claim(len(records), shape, file)
                if not index:
                    images = np.empty((len(records), *shape), np.uint8)
                if features.size is None and image.shape[:2] != shape[:2]:
                    raise _differing_sizes(file, shape, image.shape)
                images[index] = image.reshape(shape)
                labels.append(label)
        found = np.array(labels, np.int32)
    except UserError:
        raise
    except (IndexError, OverflowError, ValueError, DecodeError, cv2.error) as error:
        raise broken(file.parent, f"{file.name} holds an example that cannot be decoded") from error
    num_names = len(features.class_names)
    if labels and not form.lowest_label <= min(labels) <= max(labels) < num_names:
        raise broken(file.parent, f"{file.name} holds a label outside 0..{num_names - 1}")
    return images, found


def _decoder(form: _Form) -> Callable[[bytes], tuple[np.ndarray, int]]:
    """Returns what decodes one example: an image uint8 `[H, W]` or `[H, W, 3]`, and its label.

    OpenCV takes a third of Pillow's time for a small PNG.
    """
    import cv2  # As above.

    features = form.features
    flags = cv2.IMREAD_GRAYSCALE if features.num_channels == 1 else cv2.IMREAD_COLOR_RGB

    def decode(record: bytes) -> tuple[np.ndarray, int]:
        encoded, label = _parsed(record, features)
        if features.size is not None and stated_pixels(encoded) > math.prod(features.size):
            raise ValueError("larger than features.json says")
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
        if image is None:
            raise ValueError("not an image")
        if form.size is not None:
            import PIL.Image  # Only where images are resized.

            resized = image_form.resize_and_crop(PIL.Image.fromarray(image), form.size)
            image = np.asarray(resized)
        return image, label

    return decode


def _parsed(record: bytes, features: ImageFeatures) -> tuple[bytes, int]:
    """The encoded image and the label of an example."""
    feature = example_class().FromString(record).features.feature
    image, label = feature[features.image].bytes_list, feature[features.label].int64_list
    return image.value[0], label.value[0]


def _check_claim(num_examples: int, shape: tuple[int, ...], file: Path) -> None:
    if num_examples * math.prod(shape) > memory_bytes() // 4:
        raise broken(file.parent, f"{file.name} claims more than this machine's memory can hold")


def _differing_sizes(file: Path, first: tuple[int, ...], second: tuple[int, ...]) -> UserError:
    sizes = [f"{shape[0]}x{shape[1]}" for shape in (first, second)]
    return UserError(
        f"{file} holds images of {' and '.join(sizes)} pixels (height x width); all must have one "
        "size: set config.resize, such as 64 or '64x48', which resizes them all"
    )
