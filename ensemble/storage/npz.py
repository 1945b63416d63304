"""npz and npy files: arrays of numbers and text, no more of them than memory holds."""

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from ensemble.errors import in_one_line

Arrays = dict[str, np.ndarray]
"""Arrays by name."""


def read_arrays(
    file: str | os.PathLike[str] | IO[bytes],
    limit: float = math.inf,
    prefixes: tuple[str, ...] = ("",),
) -> Arrays:
    """Reads the arrays of an npz file whose names begin so.

    Args:
        file: Path or open file.
        limit: Bytes that all of its arrays may take.
        prefixes: Beginnings of the names of the arrays to read.

    Raises:
        ValueError: The file is damaged, too large, or holds Python objects.
    """
    found = {}
    with _errors(), zipfile.ZipFile(file) as archive:
        total = sum(member.file_size for member in archive.infolist())
        if total > limit:
            raise ValueError(f"its arrays take {total:,} bytes, more than the {limit:,} allowed")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name.startswith(prefixes):
                with archive.open(member) as content:
                    _check_size(content, name, member.file_size)
                with archive.open(member) as content:
                    found[name] = np.lib.format.read_array(content, allow_pickle=False)
                    content.read(1)  # At its end the checksum is compared.
    return found


def _check_size(content: IO[bytes], name: str, num_bytes: int) -> None:
    """Refuses what is no array of numbers or text, and one that claims more than its file has.

    Some versions of NumPy believe what it claims.
    """
    form = np.lib.format
    is_first = form.read_magic(content) == (1, 0)
    read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
    shape, _, dtype = read(content)
    if dtype.kind not in "biufcUS" or not dtype.itemsize:
        raise ValueError(f"{name} has dtype {dtype}, and pickles are not read")
    if math.prod(shape) * dtype.itemsize > num_bytes:
        raise ValueError(f"{name} claims {shape} of {dtype}, more than its {num_bytes:,} bytes")


def map_array(path: os.PathLike[str]) -> np.ndarray:
    """Maps an npy file: its values are read from the disk when they are used.

    Raises:
        ValueError: The file is damaged, or holds Python objects.
    """
    with _errors():
        with open(path, "rb") as content:
            _check_size(content, "it", os.stat(path).st_size)
        return np.asarray(np.lib.format.open_memmap(path, "r"))


@contextmanager
def _errors() -> Iterator[None]:
    """Within, whatever damage does to zipfile and to NumPy is a `ValueError`."""
    try:
        yield
    except Exception as error:
        raise ValueError(in_one_line(error, 200)) from error
