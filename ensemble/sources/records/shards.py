"""The shards of a folder of records: ArrayRecord files, read at random and written in order.

A record is the header `HEADER` and behind it the bytes of an example's inputs. The header says
which folder the record belongs to and which number it has there, so that a record that is damaged,
or another's, is found when it is read. ArrayRecord has a checksum of each record.
"""

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.errors import Damaged, UserError, in_one_line

HEADER = np.dtype([("tag", "S16"), ("number", "<u8")])
"""The folder's tag in hexadecimal digits, and the number of the record among all of the folder."""
SUFFIX = ".array_record"
SHARD_BYTES = 1 << 30
"""The size of a shard, about: larger ones are read faster, smaller ones are moved more easily."""
_AT_ONCE_BYTES = 1 << 24
"""Read at once, at most."""
_READ = "readahead_buffer_size:0"  # For reading at random, as ArrayRecord's documentation has it.
_WRITE = "group_size:1,uncompressed"  # Pixels hardly shrink, and unpacking takes half of the time.
_ERRORS = (RuntimeError, ValueError, IndexError)  # Of ArrayRecord, on whatever damage.


def shard_name(part: str, index: int) -> str:
    """The file name of a shard of a part of the examples."""
    return f"{part}-{index:05d}{SUFFIX}"


def shard_names(lengths: Mapping[str, Sequence[int]]) -> list[str]:
    """The file names of all shards, from how many records each has, by part."""
    return [shard_name(part, i) for part, own in lengths.items() for i in range(len(own))]


class RecordArray:
    """The inputs of a part, [N, ...], which are read from its shards by their indices.

    Args:
        files: the shards.
        lengths: how many records each has.
        first: the number of the first record among all of the folder.
        tag: of the folder.
        shape: of an example.
        dtype: of the inputs.
        remedy: of what is damaged.
    """

    def __init__(
        self,
        files: Sequence[Path],
        lengths: Sequence[int],
        first: int,
        tag: bytes,
        shape: tuple[int, ...],
        dtype: np.dtype,
        remedy: str,
    ):
        self._remedy = remedy
        self._files, self._first, self._tag = tuple(files), first, tag
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - np.asarray(lengths)
        self.shape = (int(self._ends[-1]), *shape)
        self.dtype = dtype
        self._size = HEADER.itemsize + math.prod(shape) * dtype.itemsize
        self._scratch = np.empty((0, self._size), np.uint8)  # New memory costs as much as reading.
        self._readers: dict[int, Any] = {}
        self._absent: dict[int, Damaged] = {}
        self._lock = threading.Lock()  # A reader is of one thread at a time, and has own threads.

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | np.ndarray, /) -> np.ndarray:
        """Reads examples.

        Args:
            where: a slice of consecutive examples, or indices [n].

        Returns:
            Inputs [n, ...].

        Raises:
            UserError: a record is damaged or foreign; it is named.
        """
        if isinstance(where, slice):
            where = np.arange(*where.indices(len(self)))
        order = np.argsort(where, kind="stable")  # The disk is read forwards.
        ordered = where[order]
        found = np.empty((len(where), *self.shape[1:]), self.dtype)
        rows = found.reshape(len(where), math.prod(self.shape[1:])).view(np.uint8)
        at_once = max(1, _AT_ONCE_BYTES // self._size)
        bounds = np.searchsorted(ordered, self._ends)
        with self._lock:
            for shard, (start, end) in enumerate(zip([0, *bounds[:-1]], bounds, strict=True)):
                for low in range(start, end, at_once):
                    some = slice(low, min(low + at_once, end))
                    rows[order[some]] = self._read(shard, ordered[some] - self._starts[shard])
        return found

    def _read(self, shard: int, indices: np.ndarray) -> np.ndarray:
        """The bytes [n, size] of the inputs of some records of one shard, until the next call."""
        numbers = indices + (self._first + self._starts[shard])
        reader, size = self._reader(shard), self._size
        try:
            if (np.diff(indices) == 1).all():
                records = reader.read(int(indices[0]), int(indices[-1]) + 1)
            else:
                records = reader.read(indices.tolist())
        except _ERRORS:
            records = []
        if len(records) == len(indices) and {size} == set(map(len, records)):
            if len(self._scratch) < len(records):
                self._scratch = np.empty((len(records), size), np.uint8)
            table = self._scratch[: len(records)]
            content = table.reshape(-1).data
            for i, record in enumerate(records):
                content[i * size : (i + 1) * size] = record
            header = table[:, : HEADER.itemsize].view(HEADER)[:, 0]
            if (header["tag"] == self._tag).all() and (header["number"] == numbers).all():
                return table[:, HEADER.itemsize :]
        raise self._fault(shard, indices, numbers)

    def _reader(self, shard: int) -> Any:
        """The reader of a shard, opened when it is first needed."""
        if shard in self._absent:  # Whoever leaves records out asks for each of its records.
            raise Damaged(self._absent[shard].what, self._absent[shard].remedy)
        if shard not in self._readers:
            length = int(self._ends[shard] - self._starts[shard])
            try:
                self._readers[shard] = self._opened(self._files[shard], length)
            except Damaged as error:
                self._absent[shard] = error
                raise
        return self._readers[shard]

    def _drop(self, shard: int) -> None:
        """Closes the reader of a shard, so that it is opened anew."""
        with contextlib.suppress(*_ERRORS):
            self._readers.pop(shard).close()

    def _fault(self, shard: int, indices: np.ndarray, numbers: np.ndarray) -> Damaged:
        """Says which of some records is wrong, and how."""
        self._drop(shard)  # After an error a reader says the same of every record.
        reader, file, expected = self._reader(shard), self._files[shard], self._size
        for index, number in zip(indices.tolist(), numbers.tolist(), strict=True):
            what = f"{file}: record {index}"
            try:
                (record,) = reader.read([index])
            except _ERRORS as error:
                self._drop(shard)
                return self._error(f"{what} is damaged ({_reason(error)})")
            if len(record) != expected:
                return self._error(
                    f"{what} has {len(record):,} bytes where {expected:,} belong: it is truncated "
                    "or of another folder"
                )
            (header,) = np.frombuffer(record[: HEADER.itemsize], HEADER)
            if header["tag"] != self._tag:
                return self._error(f"{what} is of another folder")
            if header["number"] != number:
                return self._error(
                    f"{what} is record {header['number']} of the folder, not {number}"
                )
        return self._error(f"{file} cannot be read, though each of its records can")

    def _error(self, what: str) -> Damaged:
        return Damaged(what, self._remedy)

    def _opened(self, file: Path, length: int) -> Any:
        from array_record.python import array_record_module  # Only where there are records.

        if not file.is_file():
            raise self._error(f"{file} is missing")
        try:
            reader = array_record_module.ArrayRecordReader(str(file), _READ)
            found = reader.num_records()
        except _ERRORS as error:
            raise self._error(f"{file} is truncated or damaged ({_reason(error)})") from error
        if found != length:
            what = "it is truncated or of another folder"
            raise self._error(f"{file} holds {found} records where {length} belong: {what}")
        return reader


def _reason(error: Exception) -> str:
    """What ArrayRecord says is wrong, without its name and the digests that it compares."""
    text = re.sub(r" ?\([^()]*\)", "", str(error))
    return in_one_line(text.removeprefix("Corrupted Riegeli/records file: "))


class ShardWriter:
    """Writes the records of a folder, part by part, in order.

    Args:
        folder: where to.
        tag: of the folder.

    Attributes:
        lengths: records of each shard, by part.
    """

    def __init__(self, folder: Path, tag: bytes):
        self._folder, self._tag = folder, tag
        self.lengths: dict[str, list[int]] = {}
        self._number = 0

    @contextlib.contextmanager
    def part(self, part: str) -> Iterator[Callable[[np.ndarray], None]]:
        """Opens a part; what is yielded writes inputs [n, ...] behind those before.

        Raises:
            UserError: there is no room.
        """
        from array_record.python.array_record_module import ArrayRecordWriter  # Likewise.

        lengths = self.lengths.setdefault(part, [])
        writer: Any = None
        num_bytes = 0

        def write(inputs: np.ndarray) -> None:
            nonlocal writer, num_bytes
            header = np.empty(len(inputs), HEADER)
            header["tag"] = self._tag
            header["number"] = self._number + np.arange(len(inputs))
            for one, row in zip(header, np.ascontiguousarray(inputs), strict=True):
                if writer is None or num_bytes > SHARD_BYTES:
                    if writer is not None:
                        writer.close()
                    file = self._folder / shard_name(part, len(lengths))
                    writer, num_bytes = ArrayRecordWriter(str(file), _WRITE), 0
                    lengths.append(0)
                record = one.tobytes() + row.tobytes()
                writer.write(record)
                lengths[-1] += 1
                num_bytes += len(record)
            self._number += len(inputs)

        def write_all(inputs: np.ndarray) -> None:
            with self._errors():
                write(inputs)

        yield write_all
        if writer is not None:
            with self._errors():
                writer.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise UserError(
                f"{self._folder} cannot be written ({_reason(error)}); free space there, or choose "
                "another folder"
            ) from error
