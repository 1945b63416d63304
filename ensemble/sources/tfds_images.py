"""Decodes prepared TFDS sets of images and class labels.

TFDS says what an example holds, which of it is learned from which, and the names of classes.
"""

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from ensemble.errors import Damaged, UserError, in_one_line
from ensemble.sources import image_form
from ensemble.sources.image_memory import png_header, stated_pixels, threads_for
from ensemble.sources.tfds_records import PreparedSet, broken
from ensemble.storage.memory import memory_bytes

_AT_ONCE, _LARGE_AT_ONCE = 4096, 256  # Records that are decoded together; of images of any size.
_BYTES_AT_ONCE = 2**26  # Of images that are decoded together.
_MAX_SIDE, _MAX_CLASSES = 2**16, 2**17  # Of an image in pixels; of a set.


class ImageFeatures(NamedTuple):
    """The features of a set for image classification.

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


class PreparedImages:
    """The images [N, H, W, C] of a split, which are decoded when they are read.

    Args:
        prepared: the set.
        features: of the set.
        split: of TFDS.
        size: (height, width) to which images are brought by `image_form.resize_and_crop`; None:
            they have one size.

    Raises:
        UserError: the set is damaged.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        prepared: PreparedSet,
        features: ImageFeatures,
        split: str,
        size: tuple[int, int] | None = None,
    ):
        self._directory, self._features, self._size = prepared.directory, features, size
        self._is_gray = features.num_channels == 1
        sides = features.size
        self._png = png_header(*sides) if sides else b""  # Anything begins so.
        self._max_pixels = math.prod(sides or ())
        # Images of a known size are mostly small: they decode in 8 microseconds, and threads that
        # hand over the interpreter lock that often are no faster.
        self._in_threads = sides is None or size is not None
        self._records = prepared.records(split)
        shape = features.shape(size) or self._shape_of_first()
        self.shape = (len(self._records), *shape)
        most = _LARGE_AT_ONCE if self._in_threads else _AT_ONCE
        self._at_once = max(1, min(most, _BYTES_AT_ONCE // math.prod(shape)))

    def _shape_of_first(self) -> tuple[int, ...]:
        encoded, _ = self._parsed(self._records.read([0]))
        return (*self._images(encoded)[0].shape[:2], self._features.num_channels)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | np.ndarray, /) -> np.ndarray:
        """Decodes images [n, H, W, C].

        Raises:
            UserError: naming the first record that cannot be decoded.
        """
        return self.examples(where)[0]

    def examples(self, where: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decodes images uint8 [n, H, W, C] and labels int32 [n]; a label of -1 is none.

        Raises:
            UserError: naming the first record that cannot be decoded.
        """
        rows = np.arange(len(self))[where].tolist()
        shape = self.shape[1:]
        if len(rows) * math.prod(shape) > memory_bytes() // 4:
            raise broken(self._directory, "it claims more than this machine's memory can hold")
        images, labels = np.empty((len(rows), *shape), np.uint8), np.empty(len(rows), np.int32)
        for start in range(0, len(rows), self._at_once):
            part = slice(start, start + self._at_once)
            self._fill(rows[part], images[part], labels[part])
        return images, labels

    def labels(self) -> np.ndarray:
        """The labels int32 [N]; 0 where a record cannot be read, which reading its image tells."""
        labels = np.zeros(len(self), np.int32)
        for start in range(0, len(self), self._at_once):
            rows = range(start, min(start + self._at_once, len(self)))
            for row, record in zip(rows, self._records.read(rows), strict=True):
                with contextlib.suppress(Damaged):
                    labels[row : row + 1] = self._parsed([record])[1]
        return labels

    def _fill(self, rows: Sequence[int], images: np.ndarray, labels: np.ndarray) -> None:
        """Decodes some records into arrays; one that cannot be decoded is named."""
        try:
            self._decode(self._records.read(rows), images, labels)
        except UserError as error:
            if len(rows) == 1:
                what = f"{self._records.place(rows[0])}: "
                if isinstance(error, Damaged):
                    raise Damaged(what + error.what, error.remedy) from error
                raise UserError(what + str(error)) from error
            middle = len(rows) // 2
            for half in (slice(middle), slice(middle, None)):
                self._fill(rows[half], images[half], labels[half])

    def _decode(self, records: list[bytes], images: np.ndarray, labels: np.ndarray) -> None:
        """Decodes serialised examples into arrays."""
        encoded, labels[:] = self._parsed(records)
        decoded = self._images(encoded)
        if others := {one.shape[:2] for one in decoded} - {images.shape[1:3]}:
            raise self._another_size(others.pop())
        np.concatenate(decoded, out=images.reshape(-1, *decoded[0].shape[1:]))

    def _parsed(self, records: list[bytes]) -> tuple[list[bytes], np.ndarray]:
        """Encoded images, and labels int32 [n], of examples."""
        image, label = self._features.image, self._features.label
        images, found = list[bytes](), list[int]()
        try:
            for record in records:  # One at a time: kept all, they take twice as long.
                feature = self._records.parse(record).features.feature
                images.append(feature[image].bytes_list.value[0])
                found.append(feature[label].int64_list.value[0])
        except (DecodeError, IndexError) as error:
            raise broken(self._directory, "it holds an example that cannot be decoded") from error
        last = len(self._features.class_names) - 1
        if not -1 <= min(found) <= max(found) <= last:
            raise broken(self._directory, f"it holds a label outside 0..{last}")
        return images, np.array(found, np.int32)

    def _images(self, encoded: list[bytes]) -> list[np.ndarray]:
        if not self._in_threads:
            return [self._image(one) for one in encoded]
        pixels = max(map(self._stated_pixels, encoded))
        with ThreadPoolExecutor(threads_for(pixels, f"an image of {self._directory}")) as pool:
            return [*pool.map(self._image, encoded)]

    def _image(self, encoded: bytes) -> np.ndarray:
        """Decodes an image, uint8 [H, W] or [H, W, 3]: OpenCV takes a third of Pillow's time."""
        import cv2  # Who has such sets has it.

        if not encoded.startswith(self._png) and self._stated_pixels(encoded) > self._max_pixels:
            raise broken(self._directory, "it holds an image larger than features.json says")
        try:
            flags = cv2.IMREAD_GRAYSCALE if self._is_gray else cv2.IMREAD_COLOR_RGB
            image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
        except cv2.error:
            image = None
        if image is None:
            raise broken(self._directory, "it holds an image that cannot be decoded")
        if self._size is None:
            return image
        import PIL.Image  # Only where images are resized.

        return np.asarray(image_form.resize_and_crop(PIL.Image.fromarray(image), self._size))

    def _stated_pixels(self, encoded: bytes) -> int:
        try:
            return stated_pixels(encoded)
        except ValueError as error:
            raise broken(self._directory, "it holds an image that cannot be decoded") from error

    def _another_size(self, shape: tuple[int, ...]) -> UserError:
        first, second = (f"{one[0]}x{one[1]}" for one in (self.shape[1:], shape))
        if self._features.size is not None:
            return broken(self._directory, f"it holds images of {second} pixels, not {first}")
        return UserError(
            f"{self._directory} holds images of {first} and {second} pixels (height x width); all "
            "must have one size: set config.resize, such as 64 or '64x48', which resizes them all"
        )


def read_features(prepared: PreparedSet) -> ImageFeatures:
    """Says what an example of a set is.

    Raises:
        UserError: the set is damaged, or is not of images with one class label each.
    """
    directory, fields = prepared.directory, prepared.features
    image, label = _keys(prepared)
    shape, dtype = fields[image].shape, np.dtype(fields[image].np_dtype)
    if dtype != np.uint8:
        raise UserError(
            f"{directory} has images of {dtype}, not of 8 bits per channel; take another set, or "
            "give arrays as npz:PATH"
        )
    *sides, num_channels = shape or [0]
    are_sides = len(sides) == 2 and all(n is None or 0 < n <= _MAX_SIDE for n in sides)
    if not are_sides or num_channels not in (None, 1, 3, 4):
        raise broken(directory, f"features.json has images of shape {shape}, not [H, W, 1 or 3]")
    num_classes = fields[label].num_classes or 0
    if not 2 <= num_classes <= _MAX_CLASSES:
        raise broken(directory, f"features.json has {num_classes} classes")
    class_names = tuple(fields[label].names)
    if len(class_names) != num_classes:
        raise broken(directory, f"{label}.labels.txt does not name {num_classes} classes")
    return ImageFeatures(
        image=image,
        label=label,
        size=None if None in sides else (sides[0], sides[1]),
        num_channels=1 if num_channels == 1 else 3,
        class_names=class_names,
    )


def _keys(prepared: PreparedSet) -> tuple[str, str]:
    """The keys of image and label: those that TFDS learns by, else the only ones of their kind."""
    from tensorflow_datasets import features  # As in `PreparedSet`.

    fields = prepared.features
    images = [key for key, one in fields.items() if type(one) is features.Image]
    labels = [key for key, one in fields.items() if type(one) is features.ClassLabel]
    supervised = prepared.supervised_keys
    if supervised and supervised[0] in images and supervised[-1] in labels:
        return supervised[0], supervised[-1]
    if len(images) == len(labels) == 1:
        return images[0], labels[0]
    kinds = [f"{key} ({type(one).__name__})" for key, one in sorted(fields.items())]
    raise UserError(
        f"{prepared.directory} is not a set of images with one class label each, it holds "
        f"{in_one_line(', '.join(kinds))}; take another set, or give arrays as npz:PATH"
    )
