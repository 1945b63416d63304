"""The user's own data: npz files, folders of images and arrays, checked before they are used.

Every form comes down to a mapping of arrays with these keys, which are also those of an npz file:

* `inputs` and `labels`: one pool of examples, to be split; or
* `train_inputs` and `train_labels`, and any of `validation_*`, `calibration_*` and `test_*`: splits
  as given;
* optionally `class_names`: one name per class, in the order of the labels.
"""

import concurrent.futures
import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble.errors import UserError
from ensemble.storage.npz import Pickled, memory_bytes, read_arrays

SPLITS = ("train", "validation", "calibration", "test")
POOL = "pool"

EXPECTED_KEYS = (
    "inputs and labels, or train_inputs and train_labels with any of validation_*, calibration_* "
    "and test_*; class_names is optional"
)
# Pillow knows others. Some (EPS) are programs that it has another program run, and some (ICO) it
# decodes as it opens them, before their size can be checked.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
PILLOW_GRAY_MODES = ("1", "L", "LA")
PILLOW_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


class OwnData(NamedTuple):
    """Checked arrays.

    Attributes:
        parts: (inputs, labels) of each given split, or of `POOL` alone where no split is given;
            inputs uint8 or float32 `[N, F]` or `[N, H, W, C]`, labels int32 `[N]`.
        class_names: one name per class.
    """

    parts: dict[str, tuple[np.ndarray, np.ndarray]]
    class_names: tuple[str, ...]


def read_npz(path: str) -> dict[str, np.ndarray]:
    """Reads every array of an npz file; the keys are checked by `check_arrays`.

    Raises:
        UserError: if the file is absent, no npz, damaged, or holds pickled objects.
    """
    file = local_path(path)
    if not file.is_file():
        raise UserError(f"npz:{path}: there is no file {file.absolute()}; check the path")
    if not zipfile.is_zipfile(file):
        raise UserError(f"npz:{path} is not an npz file; write one with numpy.savez_compressed")
    try:
        return read_arrays(file, _max_bytes())
    except Pickled as error:
        raise UserError(
            f"npz:{path}: {error}, which are never loaded since they can run code; save it as an "
            "array of numbers (class_names: of strings)"
        ) from error
    except ValueError as error:
        raise UserError(f"npz:{path} is damaged ({_one_line(error)}); write it again") from error


def local_path(path: str) -> Path:
    """A path as a user gives it.

    Raises:
        UserError: there can be no such path.
    """
    try:
        local = Path(path).expanduser()
        local.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is no path: {_one_line(error)}") from None
    return local


def _max_bytes() -> int:
    """What one data set may take: while it is checked and split there are some copies."""
    return memory_bytes() // 4


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
    if needed > _max_bytes():
        raise UserError(
            f"{len(files)} images of {_by(size)} pixels as {_shown(files[0])} need {needed:,} "
            f"bytes of memory, more than the {_max_bytes():,} allowed here; use fewer or smaller"
        )


def _read_header(file: Path) -> tuple[tuple[int, int], str]:
    """(width, height) in pixels and the Pillow mode, without decoding the image."""
    import PIL.Image  # Only where pictures are read.

    try:
        if not file.is_file():  # A pipe would be waited for.
            raise ValueError("it is no file")
        with PIL.Image.open(file, formats=FORMATS) as image:
            size, mode = image.size, image.mode
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
    except Exception as error:  # Pillow's readers raise many types on bad bytes.
        raise UserError(
            f"{_shown(file)} is damaged ({_one_line(error)}); repair or remove it"
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


def check_inputs(values: Any, dtype: np.dtype, what: str) -> np.ndarray:
    """Checks examples to predict and brings them to the type of the training data.

    Args:
        values: `[N, F]`, `[N, H, W]` or `[N, H, W, C]`.
        dtype: uint8 or float32.
        what: they are, for messages.

    Raises:
        UserError: if they cannot be of that type, and why.
    """
    array = _numeric(values, what)
    _check_shape(array, array, what)
    if dtype != np.uint8:
        return _to_float32(array, what)
    is_bad = ~((array >= 0) & (array <= 255) & (array == np.floor(array)))
    if is_bad.any():
        raise UserError(
            f"{what} holds {array[is_bad][0]}; the training data were whole numbers 0..255: give "
            "inputs on that scale"
        )
    return array.astype(np.uint8, copy=False)


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if not p.name.startswith("."))


def _folders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _by(size: Iterable[int]) -> str:
    return "x".join(str(length) for length in size)


def _shown(file: Path) -> str:
    """A path in one line; a name may hold a line break."""
    return str(file) if str(file).isprintable() else ascii(str(file))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.isprintable() else ascii(text)


def check_arrays(arrays: Mapping[str, Any], name: str) -> OwnData:
    """Checks arrays and brings them to the types in which they are kept.

    Whole numbers that all fit 0..255 become uint8, every other number float32; `[N, H, W]` becomes
    `[N, H, W, 1]`.

    Args:
        arrays: by the keys that the module describes.
        name: of the data, for messages.

    Raises:
        UserError: naming the first array that cannot be used, and why.
    """
    prefixes = _check_keys(arrays, name)
    inputs = {p: _numeric(arrays[f"{p}inputs"], f"{name}: {p}inputs") for p in prefixes}
    labels = {p: _check_labels(arrays[f"{p}labels"], f"{name}: {p}labels") for p in prefixes}
    for prefix in prefixes:
        if len(inputs[prefix]) != len(labels[prefix]):
            raise UserError(
                f"{name}: {prefix}inputs has {len(inputs[prefix])} examples but {prefix}labels has "
                f"{len(labels[prefix])}; each example needs one label"
            )
    first = next(iter(inputs.values()))
    is_uint8 = all(_fits_uint8(array) for array in inputs.values())
    for prefix, array in inputs.items():
        _check_shape(array, first, f"{name}: {prefix}inputs")
        inputs[prefix] = (
            array.astype(np.uint8, copy=False)
            if is_uint8
            else _to_float32(array, f"{name}: {prefix}inputs")
        )
        if array.ndim == 3:
            inputs[prefix] = inputs[prefix][..., None]
    parts = {p.removesuffix("_") or POOL: (inputs[p], labels[p]) for p in prefixes}
    return OwnData(parts, _check_classes(arrays.get("class_names"), labels, name))


def _check_keys(arrays: Mapping[str, Any], name: str) -> list[str]:
    """The prefixes of the parts that are given: `['']`, or `['train_', ...]`."""
    found = set(arrays) - {"class_names"}
    given = [split for split in SPLITS if {f"{split}_inputs", f"{split}_labels"} & found]
    prefixes = [f"{split}_" for split in given] if "train" in given else [""]
    expected = {f"{prefix}{kind}" for prefix in prefixes for kind in ("inputs", "labels")}
    if found != expected:
        raise UserError(
            f"{name} has the arrays {', '.join(sorted(map(str, arrays))) or '(none)'}; "
            f"expected are {EXPECTED_KEYS}"
        )
    return prefixes


def _numeric(values: Any, what: str) -> np.ndarray:
    """Values as a real-valued array that is not empty."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UserError(f"{what} is ragged; every example must have the same shape") from error
    if array.dtype.kind not in "buif":
        raise UserError(
            f"{what} has dtype {array.dtype}; it must hold integers or floating-point numbers"
        )
    if array.ndim == 0:
        raise UserError(f"{what} is a single number; give an array of examples")
    if array.size == 0:
        raise UserError(
            f"{what} has shape {array.shape}, which is empty; give at least one example"
        )
    return array


def _check_shape(array: np.ndarray, first: np.ndarray, what: str) -> None:
    if array.ndim not in (2, 3, 4):
        raise UserError(
            f"{what} has shape {array.shape}; inputs are feature vectors [N, F] or images "
            f"[N, H, W] or [N, H, W, C]"
        )
    if array.shape[1:] != first.shape[1:]:
        raise UserError(
            f"{what} has examples of shape {array.shape[1:]}, the first split has "
            f"{first.shape[1:]}; they must be the same"
        )


def _fits_uint8(array: np.ndarray) -> bool:
    return array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255


def _to_float32(array: np.ndarray, what: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        converted = array.astype(np.float32, copy=False)
    is_bad = ~np.isfinite(converted)
    if is_bad.any():
        where = np.unravel_index(np.argmax(is_bad), array.shape)
        raise UserError(
            f"{what} holds {array[where]} in example {where[0]}; every value must be finite in "
            f"float32: remove or replace it"
        )
    return converted


def _check_labels(values: Any, what: str) -> np.ndarray:
    """Labels as whole numbers from 0, int32 `[N]`; `_check_classes` has the upper limit."""
    labels = _numeric(values, what)
    if labels.ndim != 1:
        raise UserError(
            f"{what} has shape {labels.shape}; labels are [N]: one class number per example, not "
            f"one-hot"
        )
    bad = ~np.isfinite(labels) | (labels < 0) | (labels != np.floor(labels)) | (labels >= 2**31)
    if bad.any():
        where = int(np.argmax(bad))
        raise UserError(
            f"{what} holds {labels[where]} in example {where}; labels are whole numbers 0..C-1: "
            f"renumber the classes from 0"
        )
    return labels.astype(np.int32)


def _check_classes(class_names: Any, labels: dict[str, np.ndarray], name: str) -> tuple[str, ...]:
    """One name per class: those given, or '0', '1', ... up to the largest label."""
    largest = {prefix: int(values.max()) for prefix, values in labels.items()}
    if class_names is None:
        num_classes, num_labels = max(largest.values()) + 1, sum(map(len, labels.values()))
        if num_classes > max(num_labels, 2):
            raise UserError(
                f"{name}: labels reach {num_classes - 1} with only {num_labels} examples; labels "
                f"are 0..C-1: renumber the classes from 0, or give class_names"
            )
        names = tuple(str(label) for label in range(num_classes))
    else:
        names = tuple(str(class_name) for class_name in np.ravel(class_names))
    for prefix, label in largest.items():
        if label >= len(names):
            raise UserError(
                f"{name}: {prefix}labels holds {label}, but there are {len(names)} class_names and "
                f"labels are 0..{len(names) - 1}; name every class or correct the label"
            )
    if len(names) < 2:
        raise UserError(f"{name} has the one class {names[0]}; classification needs two or more")
    if len(set(names)) < len(names):
        raise UserError(f"{name}: class_names holds a name twice; each class needs its own")
    return names
