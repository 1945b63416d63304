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
                    found[name] = np.lib.format.read_array(content, allow_pickle=False)
                    content.read(1)  # At its end the checksum is compared.
    return found


def map_array(path: os.PathLike[str]) -> np.ndarray:
    """Maps an npy file: its values are read from the disk when they are used.

    Raises:
        ValueError: The file is damaged, or holds Python objects.
    """
    with _errors():
        return np.asarray(np.lib.format.open_memmap(path, "r"))


@contextmanager
def _errors() -> Iterator[None]:
    """Within, whatever damage does to zipfile and to NumPy is a `ValueError`."""
    try:
        yield
    except Exception as error:
        raise ValueError(in_one_line(error, 200)) from error
