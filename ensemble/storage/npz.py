"""npz and npy files: arrays of numbers and text, no more of them than memory holds."""

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from ensemble.errors import in_one_line

_SUFFIX = ".npy"
_LOCAL_HEADER = 30
"""Bytes of a zip file's header of an entry, without name and extra field."""


class Pickled(ValueError):
    """An array of Python objects: reading it would run code."""


def read_arrays(
    file: str | os.PathLike[str] | IO[bytes],
    limit: int | None = None,
    prefixes: tuple[str, ...] = ("",),
) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file whose names begin so.

    Args:
        file: Path or open file.
        limit: Bytes that all of its arrays may take; None: any.
        prefixes: Of the names of the arrays to read.

    Raises:
        Pickled: An array holds Python objects.
        ValueError: Anything else is wrong with the file.
    """
    found = {}
    with _opened(file, limit) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(_SUFFIX)
            if name.startswith(prefixes):
                found[name] = _read(archive, member, name)
    return found


def map_arrays(path: os.PathLike[str], limit: int) -> dict[str, np.ndarray]:
    """Maps the arrays of an npz file that is not compressed, after their checksums are compared.

    Args:
        path: Of the file.
        limit: Bytes that all of its arrays may take.

    Raises:
        Pickled: An array holds Python objects.
        ValueError: Anything else is wrong with the file.
    """
    found = {}
    with open(path, "rb") as file, _opened(file, limit) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(_SUFFIX)
            with archive.open(member) as content:
                shape, is_fortran, dtype = _header(content, name)
                start = content.tell()
                while content.read(1 << 20):
                    pass  # At its end the checksum is compared.
            if member.compress_type or dtype.kind not in "iuf" or not math.prod(shape):
                found[name] = _read(archive, member, name)
                continue
            file.seek(member.header_offset + _LOCAL_HEADER - 4)
            lengths = np.frombuffer(file.read(4), "<u2")  # Of name and extra field.
            start += member.header_offset + _LOCAL_HEADER + int(lengths.sum())
            order: Any = "F" if is_fortran else "C"
            found[name] = np.asarray(np.memmap(path, dtype, "r", start, shape, order))
    return found


def map_array(path: os.PathLike[str]) -> np.ndarray:
    """Maps an npy file: its values are read from the disk when they are used.

    Raises:
        Pickled: The array holds Python objects.
        ValueError: Anything else is wrong with the file.
    """
    with _errors():
        with open(path, "rb") as content:
            shape, _, dtype = _header(content)
        if not math.prod(shape):
            return np.empty(shape, dtype)  # Nothing can be mapped.
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


@contextmanager
def _errors() -> Iterator[None]:
    """Within, whatever damage does to zipfile and to NumPy is a `ValueError`."""
    try:
        yield
    except Pickled:
        raise
    except (Exception, RecursionError) as error:
        raise ValueError(in_one_line(error, 200)) from error


@contextmanager
def _opened(
    file: str | os.PathLike[str] | IO[bytes], limit: int | None = None
) -> Iterator[zipfile.ZipFile]:
    """Opens an npz file whose arrays take at most so many bytes."""
    with _errors(), zipfile.ZipFile(file) as archive:
        total = sum(member.file_size for member in archive.infolist())
        if limit is not None and total > limit:
            raise ValueError(f"its arrays take {total:,} bytes, more than the {limit:,} allowed")
        yield archive


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> np.ndarray:
    with archive.open(member) as content:
        shape, _, dtype = _header(content, name)
    if (claimed := math.prod(shape) * dtype.itemsize) > member.file_size:
        # Some versions of NumPy take the memory first.
        raise ValueError(f"{name} claims {claimed:,} bytes and has {member.file_size:,}")
    with archive.open(member) as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # At its end the checksum is compared.
    return array


def _header(content: IO[bytes], name: str = "it") -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and dtype of an array, numbers or text."""
    try:
        version = np.lib.format.read_magic(content)
    except ValueError:
        raise ValueError(f"{name} is not an array") from None
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} has version {version} of the format")
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(content)
    if dtype.hasobject:
        raise Pickled(f"{name} holds pickled Python objects")
    if dtype.kind not in "biufcUS" or not dtype.itemsize:
        raise ValueError(f"{name} has dtype {dtype}, not numbers or text")
    return shape, is_fortran, dtype
