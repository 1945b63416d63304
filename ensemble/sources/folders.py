"""Folders of images, one per class: checked before they are decoded, in bounded memory."""

import concurrent.futures
import math
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ensemble.errors import UserError, in_one_line
from ensemble.source import Request
from ensemble.sources.dataset import Dataset, dataset_from_arrays
from ensemble.sources.own_arrays import local_path, max_data_bytes
from ensemble.sources.splitting import SPLITS

# Pillow knows others. Some (EPS) are programs that it has another program run, and some (ICO) it
# decodes as it opens them, before their size can be checked.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")


PILLOW_GRAY_MODES = ("1", "L", "LA")


PILLOW_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


def load_folder(name: str, request: Request) -> Dataset:
    """Makes a data set of a folder of images."""
    arrays = read_folder(name.partition(":")[2])
    return dataset_from_arrays(arrays, name, request.seed, request.hold_out)


def read_folder(path: str) -> dict[str, np.ndarray]:
    """Reads a folder of images with one folder per class.

    The class folders lie in `path` itself, or in `path/train` and any of `path/validation`,
    `path/calibration` and `path/test`. Sorted folder names are the class names. Hidden files are
    ignored; every other file in a class folder must be an image. If all images are grayscale they
    stay so (C = 1), otherwise all become RGB (C = 3).

    Returns:
        arrays with the keys that the module describes: inputs uint8 `[N, H, W, C]`.

    Raises:
        UserError: if there are no classes or images, or an image cannot be read or differs in size.
    """
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
    images = read_images([file for part in files.values() for file, _ in part])
    bounds = np.cumsum([len(part) for part in files.values()])[:-1]
    # A name may be any bytes, what is shown and stored is text.
    shown = [os.fsencode(name).decode(errors="replace") for name in class_names]
    arrays = {"class_names": np.array(shown)}
    for (prefix, part), inputs in zip(files.items(), np.split(images, bounds), strict=True):
        arrays[f"{prefix}inputs"] = inputs
        arrays[f"{prefix}labels"] = np.array([label for _, label in part], np.int32)
    return arrays


def _split_roots(root: Path) -> dict[str, Path]:
    """The folder that holds the class folders of each part, by key prefix (`''` for a pool).

    A class may itself be called `train`: only a `train` folder with folders inside is a split.
    """
    if not _folders(root / "train"):
        return {"": root}
    unknown = [folder.name for folder in _folders(root) if folder.name not in SPLITS]
    if unknown:
        raise UserError(
            f"{_shown(root / unknown[0])} is beside the split train but none of "
            f"{', '.join(SPLITS)}; rename or move it"
        )
    return {f"{split}_": root / split for split in SPLITS if (root / split).is_dir()}


def read_images(files: list[Path]) -> np.ndarray:
    """Reads images of one size.

    Args:
        files: N image files, at least one.

    Returns:
        uint8 `[N, H, W, C]`; C = 1 if every image is grayscale, else 3 (RGB; transparency dropped).

    Raises:
        UserError: naming the first file that is no 8-bit image or differs in size from the first.
    """
    # Pillow decodes outside the interpreter lock, so that threads use all cores.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        headers = list(pool.map(_read_header, files))
        for file, (size, _) in zip(files, headers, strict=True):
            if size != headers[0][0]:
                raise UserError(
                    f"{_shown(file)} is {_by(size)} pixels but {_shown(files[0])} is "
                    f"{_by(headers[0][0])}; all images must have one size: resize them"
                )
        mode = "L" if all(mode in PILLOW_GRAY_MODES for _, mode in headers) else "RGB"
        _check_total(files, headers[0][0], len(mode))
        images = np.stack(list(pool.map(lambda file: _read_image(file, mode), files)))
    return images[..., None] if mode == "L" else images


def _check_total(files: list[Path], size: tuple[int, int], num_channels: int) -> None:
    """Refuses images that memory cannot hold, before they are decoded."""
    needed = len(files) * math.prod(size) * num_channels
    if needed > max_data_bytes():
        raise UserError(
            f"{len(files)} images of {_by(size)} pixels as {_shown(files[0])} need {needed:,} "
            f"bytes of memory, more than the {max_data_bytes():,} allowed here; use fewer or "
            "smaller"
        )


def _read_header(file: Path) -> tuple[tuple[int, int], str]:
    """(width, height) in pixels and the Pillow mode, without decoding the image."""
    import PIL.Image  # Only where pictures are read.

    try:
        if not file.is_file():  # A pipe would be waited for.
            raise ValueError("it is no file")
        if not file.stat().st_size:
            raise UserError(f"{_shown(file)} is empty; restore or remove it")
        with PIL.Image.open(file, formats=FORMATS) as image:
            size, mode = image.size, image.mode
    except UserError:
        raise
    except PIL.Image.DecompressionBombError:
        raise UserError(
            f"{_shown(file)} has more than {2 * (PIL.Image.MAX_IMAGE_PIXELS or 0):,} pixels; "
            "make it smaller or remove it"
        ) from None
    except Exception as error:  # Pillow's readers raise many types on bad bytes.
        raise UserError(
            f"{_shown(file)} is not an image that Pillow reads as {', '.join(FORMATS)}; repair or "
            f"convert it, or move it out of the class folder"
        ) from error
    if mode not in PILLOW_GRAY_MODES + PILLOW_COLOUR_MODES:
        raise UserError(
            f"{_shown(file)} has mode {mode}, not 8 bits per channel; convert it to 8-bit gray or "
            f"RGB"
        )
    return size, mode


def _read_image(file: Path, mode: str) -> np.ndarray:
    """uint8 `[H, W]` for mode `L`, `[H, W, 3]` for `RGB`; of an animation the first frame."""
    import PIL.Image  # Only where pictures are read.

    try:
        with PIL.Image.open(file, formats=FORMATS) as image:
            return np.asarray(image.convert(mode))
    except UserError:
        raise
    except PIL.Image.DecompressionBombError:
        raise UserError(
            f"{_shown(file)} has more than {2 * (PIL.Image.MAX_IMAGE_PIXELS or 0):,} pixels; "
            "make it smaller or remove it"
        ) from None
    except Exception as error:  # Pillow's readers raise many types on bad bytes.
        raise UserError(
            f"{_shown(file)} is damaged ({in_one_line(error)}); repair or remove it"
        ) from error


def read_unlabelled_folder(path: str) -> tuple[list[str], np.ndarray]:
    """Reads the images of a folder and of the folders in it, whatever these mean.

    Returns:
        paths relative to the folder `[N]`, sorted; images uint8 `[N, H, W, C]` by `read_images`.

    Raises:
        UserError: if there are no images, or by `read_images`.
    """
    root = local_path(path)
    nested = [file for folder in _folders(root) for file in _visible(folder)]
    files = sorted([file for file in _visible(root) if not file.is_dir()] + nested)
    if not files:
        raise UserError(f"{path} holds no images; give a folder of images, or of such folders")
    # A name may be any bytes, what is printed is text.
    names = [bytes(file.relative_to(root)).decode(errors="replace") for file in files]
    return names, read_images(files)


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if not p.name.startswith("."))


def _folders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _by(size: Iterable[int]) -> str:
    return "x".join(str(length) for length in size)


def _shown(file: Path) -> str:
    """A path in one line; a name may hold a line break."""
    return str(file) if str(file).isprintable() else ascii(str(file))
