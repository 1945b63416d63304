"""npz and npy files of anybody: arrays of numbers and text, no more memory than was allowed.

What an archive and the headers of its arrays claim is checked before memory is taken for it. NumPy
alone believes both: a file of some kilobytes could ask for all there is.
"""

import io
import math
import os
import zipfile
from typing import IO, Any, Literal

import numpy as np

from ensemble.errors import in_one_line
from ensemble.storage.memory import max_bytes, memory_bytes

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods by which NumPy compresses. Others may take gigabytes to decompress a byte."""
_SUFFIX = ".npy"
_MAX_HEADER = 10_000  # As NumPy has it.


class Pickled(ValueError):
    """An array of Python objects: reading it would run code."""


def read_arrays(
    file: str | os.PathLike[str] | IO[bytes],
    limit: int,
    prefixes: tuple[str, ...] = ("",),
    compressed: bool = True,
) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file whose names begin so.

    Args:
        file: a path or an open file.
        limit: bytes that all of its arrays may take.
        prefixes: of the names of the arrays to read.
        compressed: whether they may be.

    Raises:
        Pickled: an array holds Python objects.
        ValueError: anything else is wrong with the file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_archive(members, limit, compressed)
            _check_places(members, archive.start_dir)
            return {
                name: _read(archive, member, name)
                for member in members
                if (name := member.filename.removesuffix(_SUFFIX)).startswith(prefixes)
            }
    except Pickled:
        raise
    except (Exception, RecursionError) as error:  # Whatever damage does to zipfile and to NumPy.
        raise ValueError(in_one_line(error, 200)) from error


def read_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """What the headers of an npz file's arrays say of their shapes; no array is read.

    Raises:
        ValueError: anything is wrong with them.
    """
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            _check_archive(archive.infolist(), memory_bytes(), compressed=True)
            for member in archive.infolist():
                name = member.filename.removesuffix(_SUFFIX)
                with archive.open(member) as content:
                    found[name], _, _ = _check_header(content, name, member.file_size)
    except (Exception, RecursionError) as error:  # Whatever damage does to zipfile and to NumPy.
        raise ValueError(in_one_line(error, 200)) from error
    return found


def map_arrays(path: os.PathLike[str], limit: int) -> dict[str, np.ndarray]:
    """Maps the arrays of an npz file that is not compressed, once their checksums are compared.

    Args:
        path: of the file.
        limit: bytes that all of its arrays may take.

    Raises:
        Pickled: an array holds Python objects.
        ValueError: anything else is wrong with the file.
    """
    found = {}
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_archive(members, limit, compressed=False)
            _check_places(members, archive.start_dir)
            for member in members:
                name = member.filename.removesuffix(_SUFFIX)
                with archive.open(member) as content:
                    shape, is_fortran, dtype = _check_header(content, name, member.file_size)
                    header = content.tell()
                    while content.read(1 << 20):
                        pass  # At its end the checksum is compared.
                if dtype.kind not in "iuf" or not math.prod(shape):
                    found[name] = _read(archive, member, name)
                    continue
                file.seek(member.header_offset + 26)  # Of the lengths of the name and of the rest.
                lengths = (
                    int.from_bytes(file.read(2), "little"),
                    int.from_bytes(file.read(2), "little"),
                )
                offset = member.header_offset + 30 + sum(lengths) + header
                order: Literal["F", "C"] = "F" if is_fortran else "C"
                found[name] = np.asarray(np.memmap(file, dtype, "r", offset, shape, order))
    except Pickled:
        raise
    except (Exception, RecursionError) as error:  # Whatever damage does to zipfile and to NumPy.
        raise ValueError(in_one_line(error, 200)) from error
    return found


def _check_archive(members: list[zipfile.ZipInfo], limit: int, compressed: bool) -> None:
    """Raises ValueError unless the members are what they should be, and small enough together."""
    if len({member.filename for member in members}) < len(members):
        raise ValueError("it holds a name twice")
    methods = _METHODS if compressed else _METHODS[:1]
    for member in members:
        if member.compress_type not in methods or member.flag_bits & 1:
            raise ValueError(f"{member.filename} is compressed or encrypted as it must not be")
    total = sum(member.file_size for member in members)  # Zipfile reads no more than this.
    if total > limit:
        raise ValueError(f"its arrays take {total:,} bytes, more than the {limit:,} allowed here")


def _check_places(members: list[zipfile.ZipInfo], end: int) -> None:
    """Raises ValueError where members share bytes: a small file could unpack to a huge one."""
    for member in sorted(members, key=lambda one: one.header_offset, reverse=True):
        if member.header_offset + member.compress_size > end:
            raise ValueError(f"{member.filename} shares its bytes with another array")
        end = member.header_offset


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> np.ndarray:
    """Reads one array, whose header must claim as many bytes as there are."""
    with archive.open(member) as content:
        _check_header(content, name, member.file_size)
    with archive.open(member) as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # At its end the checksum is compared.
    if array.dtype.kind == "U" and array.size:
        _check_text(array, name)
    return array


def map_array(path: os.PathLike[str]) -> np.ndarray:
    """Maps an npy file of anybody: its values are read from the disk when they are looked at.

    Raises:
        Pickled: the array holds Python objects.
        ValueError: anything else is wrong with the file.
    """
    try:
        with open(path, "rb") as content:
            size = os.fstat(content.fileno()).st_size
            shape, is_fortran, dtype = _check_header(content, "it", size)
            offset = content.tell()
        if not math.prod(shape):
            return np.empty(shape, dtype)  # Nothing can be mapped.
        order: Literal["F", "C"] = "F" if is_fortran else "C"
        array = np.asarray(np.memmap(path, dtype, "r", offset, shape, order))
        if dtype.kind == "U":
            if array.nbytes > max_bytes():
                raise ValueError(f"its text takes {array.nbytes:,} bytes")
            _check_text(array, "it")
        return array
    except Pickled:
        raise
    except (Exception, RecursionError) as error:
        raise ValueError(in_one_line(error, 200)) from error


def _check_header(content: IO[bytes], name: str, size: int) -> tuple[Any, bool, np.dtype]:
    """Reads the header of an array, which must claim as many bytes as there are."""
    try:
        version = np.lib.format.read_magic(content)
    except ValueError:
        raise ValueError(f"{name} is not an array") from None
    shape, is_fortran, dtype = _read_header(content, version)
    if dtype.hasobject:
        raise Pickled(f"{name} holds pickled Python objects")
    if dtype.kind not in "biufcUS" or not dtype.itemsize:
        raise ValueError(f"{name} has dtype {dtype}, not numbers or text")
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has shape {shape}")
    claimed, there = math.prod(shape) * dtype.itemsize, size - content.tell()
    if claimed != there:
        raise ValueError(f"{name} claims {claimed:,} bytes where there are {there:,}")
    return shape, is_fortran, dtype


def _read_header(content: IO[bytes], version: tuple[int, int]) -> tuple[Any, bool, np.dtype]:
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(content, _MAX_HEADER)
    if version == (2, 0):
        prefix = content.read(4)
        length = int.from_bytes(prefix, "little")
        if length > _MAX_HEADER:  # NumPy looks at it when all is read.
            raise ValueError(f"an array claims a header of {length:,} bytes")
        header = io.BytesIO(prefix + content.read(length))
        return np.lib.format.read_array_header_2_0(header, _MAX_HEADER)
    # Version 3 is for fields with names.
    raise ValueError(f"an array has version {version} of the format")


def _check_text(array: np.ndarray, name: str) -> None:
    """Raises ValueError unless an array of text holds characters that exist."""
    native = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="))
    codes = native.view(np.uint32)
    if codes.max() > 0x10FFFF or ((codes >= 0xD800) & (codes < 0xE000)).any():
        raise ValueError(f"{name} holds what is no text")
