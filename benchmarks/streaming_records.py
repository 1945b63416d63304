"""Reads records for the peers of streaming.py; needs NumPy and array_record alone."""

import pathlib
from collections.abc import Sequence

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

BATCH_SIZE = 128
SECONDS = 6.0
SHAPE = (64, 64, 3)
_HEADER_BYTES = 24


class Records:
    """The pictures of a folder, by their indices.

    Args:
        folder: of records.
    """

    def __init__(self, folder: str):
        self._files = sorted(map(str, pathlib.Path(folder).glob("*.array_record")))
        self._source = ArrayRecordDataSource(self._files)  # As it reads at random by default.

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """Pictures uint8 [n, 64, 64, 3]."""
        whole = b"".join(self._source.__getitems__([int(index) for index in indices]))
        table = np.frombuffer(whole, np.uint8).reshape(len(indices), -1)
        return np.ascontiguousarray(table[:, _HEADER_BYTES:]).reshape(-1, *SHAPE)
