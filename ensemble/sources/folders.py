"""Folders of images, one per class: checked before they are decoded, in bounded memory."""

import concurrent.futures
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ensemble.errors import Damaged, UserError, in_one_line
from ensemble.source import Request, Source
from ensemble.sources.dataset import own_dataset
from ensemble.sources.image_form import resize_and_crop
from ensemble.sources.image_memory import FORMATS, MAX_THREADS, threads_for
from ensemble.sources.labels import classes
from ensemble.sources.on_disk import split_decoded
from ensemble.sources.own_arrays import OwnData, local_path, max_data_bytes
from ensemble.sources.splitting import POOL, SPLITS, split_of

PILLOW_GRAY_MODES = ("1", "L", "LA")


PILLOW_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


class TooLarge(UserError):
    """Images that are not to be in memory together."""


def load_folder(name: str, request: Request) -> Source:
    """Makes a data set of a folder of images: in memory, or decoded in every epoch."""
    try:
        arrays = read_folder(name.partition(":")[2], request.size)
    except TooLarge:
        return split_decoded(given_folder(name, request), name, request)
    return own_dataset(arrays, name, request)


def read_folder(path: str, size: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
    """Reads a folder of images with one folder per class.

    The class folders lie in `path` itself, or in `path/train` and any of `path/validation`,
    `path/calibration` and `path/test`. Sorted folder names are the class names. Hidden files are
    ignored; every other file in a class folder must be an image. If all images are grayscale they
    stay so (C = 1), otherwise all become RGB (C = 3).

    Args:
        path: of the folder.
        size: as of `read_images`.

    Returns:
        arrays with the keys that the module describes: inputs uint8 `[N, H, W, C]`.

    Raises:
        UserError: if there are no classes or images, or an image cannot be read or differs in size.
    """
    class_names, parts = _labelled(path)
    images = read_images([file for part in parts.values() for file, _ in part], size)
    bounds = np.cumsum([len(part) for part in parts.values()])[:-1]
    arrays = {"class_names": np.array(class_names)}
    for (prefix, part), inputs in zip(parts.items(), np.split(images, bounds), strict=True):
        arrays[f"{prefix}inputs"] = inputs
        arrays[f"{prefix}labels"] = np.array([label for _, label in part], np.int32)
    return arrays


def given_folder(name: str, request: Request) -> OwnData:
    """The examples of a folder of images, which are decoded when they are read.

    Raises:
        UserError: as `read_folder`, but for images that cannot be decoded.
    """
    class_names, parts = _labelled(name.partition(":")[2])
    labels = {prefix: np.array([label for _, label in part]) for prefix, part in parts.items()}
    found, names = classes(labels, np.array(class_names), name)
    readable, headers = [], []
    with concurrent.futures.ThreadPoolExecutor(MAX_THREADS) as pool:
        every = [file for part in parts.values() for file, _ in part]
        for file, header in zip(every, pool.map(_try_header, every), strict=True):
            if header is not None:
                readable.append(file)
                headers.append(header)
    if not readable:
        _read_header(every[0])
    mode, size = _common_mode(readable, headers, request.size), request.size
    shape = (*(size or headers[0][0]), len(mode))
    num_threads = _num_threads(readable, headers)
    inputs, targets = dict[str, PictureFiles](), dict[str, np.ndarray]()
    for prefix, part in parts.items():
        which = prefix.removesuffix("_") or POOL
        files = [file for file, _ in part]
        inputs[which] = PictureFiles(files, mode, shape, size, num_threads)
        targets[which] = found[prefix]
    return OwnData(inputs, targets, np.dtype(np.uint8), names)


def _try_header(file: Path) -> tuple[tuple[int, int], str] | None:
    """Does what `_read_header` does; None where it cannot be read: who decodes the image will say
    why."""
    try:
        return _read_header(file)
    except UserError:
        return None


def _labelled(path: str) -> tuple[list[str], dict[str, list[tuple[Path, int]]]]:
    """Names of the classes, and the files and labels of each part by its prefix."""
    root = local_path(path)
    if not root.is_dir():
        raise UserError(f"folder:{path}: there is no folder {root.absolute()}; check the path")
    roots = _split_roots(root)
    class_names = sorted({folder.name for part in roots.values() for folder in _folders(part)})
    if not class_names:
        raise UserError(f"folder:{path} holds no class folders; put each class into its own folder")
    files = {
        prefix: [
            (file, label)
            for label, class_name in enumerate(class_names)
            for file in _visible(part / class_name)
        ]
        for prefix, part in roots.items()
    }
    if not any(files.values()):
        raise UserError(f"folder:{path}: the class folders hold no images; put images into them")
    # A name may be any bytes, what is shown and stored is text.
    return [os.fsencode(name).decode(errors="replace") for name in class_names], files


def _split_roots(root: Path) -> dict[str, Path]:
    """The folder that holds the class folders of each part, by key prefix (`''` for a pool).

    A class may itself be called `train`: only a `train` folder with folders inside is a split.
    """
    if not _folders(root / "train"):
        return {"": root}
    found: dict[str, Path] = {}
    for folder in _folders(root):
        split = split_of(folder.name)
        if not split:
            raise UserError(
                f"{_shown(folder)} is beside the split train but none of "
                f"{', '.join(SPLITS)}; rename or move it"
            )
        if f"{split}_" in found:
            raise UserError(
                f"{_shown(folder)} is the split {split}, and so is {found[f'{split}_'].name}; "
                "keep one of the two"
            )
        found[f"{split}_"] = folder
    return {f"{split}_": found[f"{split}_"] for split in SPLITS if f"{split}_" in found}


class PictureFiles:
    """Images [N, H, W, C], which are decoded from their files when they are read.

    Args:
        files: N of them.
        mode: of Pillow, `L` or `RGB`, that all get.
        shape: (H, W, C) of an image.
        size: as of `read_images`.
        num_threads: that decode them.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        files: Sequence[Path],
        mode: str,
        shape: tuple[int, int, int],
        size: tuple[int, int] | None,
        num_threads: int,
    ):
        self._files, self._mode, self._size = files, mode, size
        self._num_threads = num_threads
        self.shape = (len(files), *shape)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, where: slice | np.ndarray, /) -> np.ndarray:
        """Decodes images [n, H, W, C].

        Raises:
            UserError: naming the first file that cannot be decoded, or differs in size.
        """
        chosen = [self._files[i] for i in np.arange(len(self))[where]]
        images = np.empty((len(chosen), *self.shape[1:]), np.uint8)
        with concurrent.futures.ThreadPoolExecutor(self._num_threads) as pool:
            decoded = pool.map(lambda file: _read_image(file, self._mode, self._size), chosen)
            for i, (file, image) in enumerate(zip(chosen, decoded, strict=True)):
                if image.shape[:2] != self.shape[1:3]:
                    raise Damaged(
                        f"{_shown(file)} is {_by(image.shape[:2])} pixels (height x width), the "
                        f"first image is {_by(self.shape[1:3])}",
                        "all images must have one size",
                    )
                images[i] = image.reshape(self.shape[1:])
        return images


def read_images(files: list[Path], size: tuple[int, int] | None = None) -> np.ndarray:
    """Reads images.

    Args:
        files: N image files, at least one.
        size: (height, width) that every image gets by `image_form.resize_and_crop`, turned as its
            EXIF data say; None: all have one size.

    Returns:
        uint8 `[N, H, W, C]`; C = 1 if every image is grayscale, else 3 (RGB; transparency dropped).

    Raises:
        UserError: naming the first file that is no 8-bit image or differs in size from the first.
    """
    # Pillow decodes outside the interpreter lock, so that threads use all cores.
    with concurrent.futures.ThreadPoolExecutor(MAX_THREADS) as pool:
        headers = list(pool.map(_read_header, files))
    mode = _common_mode(files, headers, size)
    _check_total(files, [one for one, _ in headers], size, len(mode))
    with concurrent.futures.ThreadPoolExecutor(_num_threads(files, headers)) as pool:
        images = np.stack(list(pool.map(lambda file: _read_image(file, mode, size), files)))
    return images[..., None] if mode == "L" else images


def _common_mode(
    files: list[Path],
    headers: Sequence[tuple[tuple[int, int], str]],
    size: tuple[int, int] | None,
) -> str:
    """The mode that all images get; refuses images of several sizes unless they are resized."""
    if size is None:
        _check_sizes(files, [one for one, _ in headers])
    return "L" if all(mode in PILLOW_GRAY_MODES for _, mode in headers) else "RGB"


def _num_threads(files: list[Path], headers: Sequence[tuple[tuple[int, int], str]]) -> int:
    """How many of these images may be decoded at once."""
    num_pixels = [math.prod(size) for size, _ in headers]
    largest = max(range(len(files)), key=num_pixels.__getitem__)
    return threads_for(num_pixels[largest], _shown(files[largest]))


def _check_sizes(files: list[Path], sizes: list[tuple[int, int]]) -> None:
    """Refuses images of several sizes."""
    for file, one in zip(files, sizes, strict=True):
        if one != sizes[0]:
            raise UserError(
                f"{_shown(file)} is {_by(one)} pixels (height x width) but {_shown(files[0])} is "
                f"{_by(sizes[0])}; all images must have one size: set config.resize, such as "
                "64 or '64x48', which resizes them all, or resize them yourself"
            )


def _check_total(
    files: list[Path], sizes: list[tuple[int, int]], size: tuple[int, int] | None, num_channels: int
) -> None:
    """Refuses images that memory cannot hold, before they are decoded."""
    largest = max(sizes, key=math.prod)
    needed = len(files) * math.prod(size or largest) * num_channels
    if size is not None:  # Each thread holds one as it was.
        needed += MAX_THREADS * math.prod(largest) * num_channels
    if needed > max_data_bytes():
        which = f" as {_shown(files[0])}" if size is None else ""
        raise TooLarge(
            f"{len(files)} images of {_by(size or largest)} pixels{which} need {needed:,} "
            f"bytes of memory, more than the {max_data_bytes():,} allowed here; use fewer or "
            "smaller"
        )


def _read_header(file: Path) -> tuple[tuple[int, int], str]:
    """(height, width) in pixels and the Pillow mode, without decoding the image."""
    import PIL.Image  # Only where pictures are read.

    try:
        if not file.is_file():  # A pipe would be waited for.
            raise ValueError("it is no file")
        if not file.stat().st_size:
            raise Damaged(f"{_shown(file)} is empty", "restore or remove it")
        with PIL.Image.open(file, formats=FORMATS) as image:
            size, mode = (image.height, image.width), image.mode
    except UserError:
        raise
    except PIL.Image.DecompressionBombError:
        raise _too_many_pixels(file) from None
    except Exception as error:  # Pillow's readers raise many types on bad bytes.
        raise UserError(
            f"{_shown(file)} is not an image that Pillow reads as {', '.join(FORMATS)}; repair or "
            "convert it, or take it away"
        ) from error
    if mode not in PILLOW_GRAY_MODES + PILLOW_COLOUR_MODES:
        raise UserError(
            f"{_shown(file)} has mode {mode}, not 8 bits per channel; convert it to 8-bit gray or "
            f"RGB"
        )
    return size, mode


def _too_many_pixels(file: Path) -> Damaged:
    import PIL.Image  # Only where pictures are read.

    limit = 2 * (PIL.Image.MAX_IMAGE_PIXELS or 0)
    return Damaged(f"{_shown(file)} has more than {limit:,} pixels", "make it smaller or remove it")


def _read_image(file: Path, mode: str, size: tuple[int, int] | None) -> np.ndarray:
    """uint8 `[H, W]` for mode `L`, `[H, W, 3]` for `RGB`; of an animation the first frame."""
    import PIL.Image  # Only where pictures are read.
    import PIL.ImageOps  # Likewise.

    try:
        with PIL.Image.open(file, formats=FORMATS) as image:
            if size is None:
                return np.asarray(image.convert(mode))
            upright = PIL.ImageOps.exif_transpose(image).convert(mode)
            return np.asarray(resize_and_crop(upright, size))
    except UserError:
        raise
    except PIL.Image.DecompressionBombError:
        raise _too_many_pixels(file) from None
    except Exception as error:  # Pillow's readers raise many types on bad bytes.
        what = f"{_shown(file)} is damaged ({in_one_line(error)})"
        raise Damaged(what, "repair or remove it") from error


def read_unlabelled(
    paths: Sequence[str], size: tuple[int, int] | None = None
) -> tuple[list[str], np.ndarray]:
    """Reads image files, and those of folders and of the folders in these, whatever they mean.

    Args:
        paths: of files and folders, at least one.
        size: as of `read_images`.

    Returns:
        names `[N]`, which are the paths of files, of a single folder relative to it; images uint8
        `[N, H, W, C]` by `read_images`.

    Raises:
        UserError: if there are no images in a folder, or by `read_images`.
    """
    names, files = _unlabelled(paths)
    return names, read_images(files, size)


def unlabelled(
    paths: Sequence[str], size: tuple[int, int] | None = None
) -> tuple[list[str], PictureFiles]:
    """The same, decoded when they are read.

    Raises:
        UserError: as `read_unlabelled`, but for images that cannot be decoded.
    """
    names, files = _unlabelled(paths)
    with concurrent.futures.ThreadPoolExecutor(MAX_THREADS) as pool:
        headers = list(pool.map(_read_header, files))
    mode, num_threads = _common_mode(files, headers, size), _num_threads(files, headers)
    shape = (*(size or headers[0][0]), len(mode))
    return names, PictureFiles(files, mode, shape, size, num_threads)


def _unlabelled(paths: Sequence[str]) -> tuple[list[str], list[Path]]:
    files, shown = list[Path](), list[Path]()
    for path in paths:
        root = local_path(path)
        found = _unlabelled_files(path, root) if root.is_dir() else [root]
        is_alone = root.is_dir() and len(paths) == 1
        shown += [file.relative_to(root) for file in found] if is_alone else found
        files += found
    # A name may be any bytes, what is printed is text.
    return [bytes(one).decode(errors="replace") for one in shown], files


def _unlabelled_files(path: str, root: Path) -> list[Path]:
    nested = [file for folder in _folders(root) for file in _visible(folder)]
    files = sorted([file for file in _visible(root) if not file.is_dir()] + nested)
    if not files:
        raise UserError(f"{path} holds no images; give a folder of images, or of such folders")
    return files


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if not p.name.startswith("."))


def _folders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _by(size: Iterable[int]) -> str:
    return "x".join(str(length) for length in size)


def _shown(file: Path) -> str:
    """A path in one line; a name may hold a line break."""
    return str(file) if str(file).isprintable() else ascii(str(file))
