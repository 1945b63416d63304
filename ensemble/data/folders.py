"""Folders of images, one per class: looked at before they are decoded, in bounded memory."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.image_form import Size, other_size, resize_and_crop
from ensemble.data.own_arrays import local_path
from ensemble.data.source import Examples, Parts, Request, Stored
from ensemble.data.splitting import POOL, SPLITS, split_of
from ensemble.errors import CorruptDataError, InputError, in_one_line, listed, shown
from ensemble.notes import note

# Pillow knows others. Some (EPS) are programs that it has another program run, and some (ICO) it
# decodes as it opens them, before their size can be checked.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV")
_LEFT_BY_SYSTEMS = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir")
_EXIF = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
"""Keys of Pillow, any of which may hold an orientation."""
_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
"""Tag of EXIF, and its values that swap height and width."""


def pictures(files: Sequence[Path], size: Size | None) -> Stored:
    """Images [N, H, W, C] uint8, upright, which are decoded from their files when they are read.

    All images become RGB unless all of them are grey; transparency is dropped. Reading raises a
    `CorruptDataError` that names all files that cannot be used.

    Args:
        files: N files.
        size: (height, width) that all are brought to by `resize_and_crop`; None: all have one size.

    Raises:
        InputError: No file is an image, or their sizes differ.
    """
    import PIL.ImageOps  # Only where pictures are read.

    results = _read(files, _header)
    found = [one for one in results if not isinstance(one, str)]
    if not found:
        _check_read(results)
    first = found[0][0]
    for other, _, path in found if size is None else ():
        if other != first:
            raise other_size(path, other, first)
    target = "L" if {mode for _, mode, _ in found} <= {*_GREY} else "RGB"
    example = (*(size or first), len(target))

    def read(rows: NDArray) -> NDArray:
        images = np.empty((len(rows), *example), np.uint8)

        def decode(image, i: int) -> None:
            image.load()
            PIL.ImageOps.exif_transpose(image, in_place=True)
            upright = image if image.mode == target else image.convert(target)
            if size is not None:
                upright = resize_and_crop(upright, size)
            images[i] = np.asarray(upright).reshape(example)

        # Pillow decodes outside the interpreter lock, so that threads use all cores.
        _check_read(_read([files[i] for i in rows], decode))
        return images

    return Stored(np.arange(len(files)), example, np.dtype(np.uint8), read, is_encoded=True)


def given_folder(name: str, request: Request) -> Parts:
    """Returns the examples of a folder of images.

    The class folders lie in the folder itself, or in its folder `train` and those of other splits.
    Sorted names of the folders that hold images are the class names.

    Args:
        name: `folder:PATH`.
        request: How they are asked for.

    Returns:
        Images that are decoded when they are read.

    Raises:
        InputError: There are no classes or images, or images cannot be read or differ in size.
    """
    root = local_path(name.partition(":")[2])
    if not root.is_dir():
        raise InputError(f"{name}: there is no folder {root.absolute()}; check the path")
    roots = _split_roots(root)
    found = _files(root, 2 if POOL in roots else 3)
    files = {
        split: [file for file in found if file.parent.parent == part]
        for split, part in roots.items()
    }
    every = [file for part in files.values() for file in part]
    names, targets = np.unique([file.parent.name for file in every], return_inverse=True)
    if len(names) < 2 or not all(files.values()):
        raise InputError(
            f"{name} holds {len(names)} class folders with images; put the images of each of two "
            "or more classes into a folder of its own, in each split"
        )
    # What is wrong with headers is told when images are decoded, with what is wrong with pixels.
    images = pictures(every, request.size)
    parts = {}
    end = 0
    for split, part in files.items():
        here = slice(end, end := end + len(part))
        parts[split] = Examples(images.part(here), targets[here].astype(np.int32))
    # A name may be any bytes, what is shown and stored is text.
    return Parts(parts, class_names=tuple(map(_text, names.tolist())))


def _split_roots(root: Path) -> dict[str, Path]:
    """Returns the folder that holds the class folders of each split, or of `POOL`.

    A class may itself be called `train`: only a `train` folder with folders inside is a split.
    """
    if not _folders(root / "train"):
        return {POOL: root}
    found = {}
    for folder in _folders(root):
        split = split_of(folder.name)
        if split not in SPLITS or split in found:
            raise InputError(
                f"{_path(folder)} is beside train, and is none of {', '.join(SPLITS)}, or that for "
                "a second time; rename or move it"
            )
        found[split] = folder
    return {split: found[split] for split in SPLITS if split in found}


def unlabelled(paths: Sequence[str], size: Size | None = None) -> tuple[list[str], Stored]:
    """Finds image files, and those of folders and of the folders in these, whatever they mean.

    Args:
        paths: Files and folders, at least one.
        size: (height, width) that all get; None: all have one size.

    Returns:
        Names [N], which are the paths of files, of a single folder relative to it; and images.

    Raises:
        InputError: A folder has no images, no file is an image, or images differ in size.
    """
    files = []
    for root in map(local_path, paths):
        found = _files(root, 2) if root.is_dir() else [root]
        if not found:
            raise InputError(f"{root} holds no images; give a folder of images, or of such folders")
        files += found
    is_alone = root.is_dir() and len(paths) == 1
    names = [_text(file.relative_to(root) if is_alone else file) for file in files]
    return names, pictures(files, size)


def _header(image, _: int) -> tuple[Size, str, str]:
    """Returns (height, width) upright, mode and path of an image that is not decoded."""
    # TIFF is turned as it is loaded; of others without such data Pillow would decode the pixels.
    may_be_turned = image.format != "TIFF" and not _EXIF.isdisjoint(image.info)
    is_turned = may_be_turned and image.getexif().get(_ORIENTATION) in _TURNED
    size = image.size if is_turned else image.size[::-1]
    return size, image.mode, _path(image.filename)


def _read(files: Sequence[Path], function) -> list[Any]:
    """Results of a function of an open image and its number; of other files what is wrong."""
    import PIL.Image  # Only where pictures are read.

    def call(i: int):
        file = files[i]
        try:
            if not file.is_file():  # A pipe would be waited for.
                what = "is no file"
            elif not file.stat().st_size:
                what = "is empty"
            else:
                with PIL.Image.open(file, formats=FORMATS) as image:
                    if image.mode in (*_GREY, *_COLOUR):
                        return function(image, i)
                    what = f"has mode {image.mode}, which is not 8-bit grey or RGB"
        except PIL.UnidentifiedImageError:
            what = "is damaged or not an image"
        except Exception as error:  # Pillow's readers raise many types on bad bytes.
            what = f"is damaged ({in_one_line(error)})"
        return f"{_path(file)} {what}"

    with ThreadPoolExecutor() as pool:
        return list(pool.map(call, range(len(files))))


def _check_read(results: Sequence[Any]) -> None:
    """Refuses all files that cannot be used, in one line.

    Raises:
        CorruptDataError: as said.
    """
    if faults := [one for one in results if isinstance(one, str)]:
        raise CorruptDataError(
            f"{len(faults)} of {len(results)} files cannot be used: {listed(faults, 10)}",
            f"repair them, convert them to one of {', '.join(FORMATS)}, or remove them",
        )


def _files(root: Path, depth: int) -> list[Path]:
    """Returns the files of a folder and of the folders in it, and what lies as deep as is read.

    What systems leave behind is no class and no image; its names are noted.
    """
    found = []
    junk: list[Path] = []
    level = [root]
    for _ in range(depth):
        found += [one for one in level if not one.is_dir()]
        inside = sorted(one for folder in level for one in folder.glob("*"))
        junk += filter(_is_junk, inside)
        level = [one for one in inside if not _is_junk(one)]
    if junk:
        names = [_path(one.relative_to(root)) for one in junk]
        note(
            f"{_path(root)}: {len(junk)} files and folders that are hidden, or left behind by "
            f"systems, are not read: {listed(names)}."
        )
    return sorted(found + level)


def _is_junk(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in _LEFT_BY_SYSTEMS


def _folders(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.glob("*")) if one.is_dir() and not _is_junk(one)]


def _text(name: Path | str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _path(file: Path | str) -> str:
    """A path in one line; a name may hold a line break."""
    return shown(str(file))
