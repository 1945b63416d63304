"""Writes examples as a folder of records, in pieces."""

import contextlib
import logging
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ensemble.errors import Damaged, UserError
from ensemble.source import Stored, block_size
from ensemble.sources.copies import digest_examples
from ensemble.sources.own_arrays import OwnData, Summary
from ensemble.sources.records.index import EXAMPLES, INDEX, Index, columns_of
from ensemble.sources.records.shards import ShardWriter

_MAX_TOLD = 10
"""Damaged examples, or files, that the log names."""
_OR_SKIP = "or leave out what cannot be read by --skip_damaged"
logger = logging.getLogger("ensemble")


def write_records(
    given: OwnData,
    folder: Path,
    skip_damaged: bool = False,
    update: Callable[[int], None] = lambda done: None,
) -> int:
    """Writes examples as a folder of records: whole, or not at all.

    Args:
        given: the examples.
        folder: where to; it must not be there.
        skip_damaged: whether examples that cannot be read are left out.
        update: called with the number of examples that have been read.

    Returns:
        How many examples were left out.

    Raises:
        UserError: the folder is there, or an example cannot be read, or nothing is left of a part.
    """
    tag = secrets.token_hex(8)
    with _new_folder(folder) as new:
        writer = ShardWriter(new, tag.encode())
        known, kept, done = dict[str, Summary](), dict[str, np.ndarray](), 0
        for part, stored in given.inputs.items():
            reading = _Reading(given, stored, skip_damaged)
            columns = []
            with writer.part(part) as write:
                for inputs in reading.blocks():
                    write(inputs)
                    rows = inputs.reshape(len(inputs), -1)
                    digests = digest_examples(inputs, given.input_dtype)
                    columns.append(Summary(digests, rows.min(axis=1), rows.max(axis=1)))
                    update(done + reading.done)
            done += len(stored)
            kept[part] = ~reading.damaged
            if not kept[part].any():
                raise UserError(f"every example of {part} is damaged, so there is nothing to write")
            known[part] = Summary(*map(np.concatenate, zip(*columns, strict=True)))
        shape = next(iter(given.inputs.values())).shape[1:]
        crc = _write_examples(new / EXAMPLES, _kept(given, kept), known)
        dtype = given.input_dtype.name
        index = Index(tag, shape, dtype, given.class_names, writer.lengths, crc)
        (new / INDEX).write_text(index.to_json())
    return sum(int((~one).sum()) for one in kept.values())


def check_new(folder: Path) -> None:
    """Refuses to write over what is there.

    Raises:
        UserError: as said.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already; choose a new folder, or remove it")


class _Reading:
    """Reads a part in blocks.

    Attributes:
        done: examples that have been read.
        damaged: [N], those that cannot be read.
    """

    def __init__(self, given: OwnData, stored: Stored, skip_damaged: bool):
        self._given, self._stored, self._skips = given, stored, skip_damaged
        self.done, self.damaged = 0, np.zeros(len(stored), bool)
        self._told = set[str]()  # Of a file that is missing all examples say the same.

    def blocks(self) -> Iterator[np.ndarray]:
        """The inputs [n, ...] that can be read, as they are kept."""
        size = block_size(self._stored.shape[1:])
        for start in range(0, len(self._stored), size):
            where = slice(start, min(start + size, len(self._stored)))
            try:
                block = self._stored[where]
            except UserError as error:
                if not self._skips:
                    if isinstance(error, Damaged):
                        raise Damaged(error.what, f"repair it, {_OR_SKIP}") from error
                    raise UserError(f"{error}; {_OR_SKIP}") from error
                block = self._undamaged(where)
            self.done = where.stop
            if len(block):
                yield self._given.convert(block)

    def _undamaged(self, where: slice) -> np.ndarray:
        found = []
        for i in range(where.start, where.stop):
            try:
                found.append(self._stored[i : i + 1])
            except UserError as error:
                self.damaged[i] = True
                what = error.what if isinstance(error, Damaged) else str(error)
                if what not in self._told and len(self._told) < _MAX_TOLD:
                    self._told.add(what)
                    logger.warning("left out: %s", what)
        empty = np.empty((0, *self._stored.shape[1:]), self._stored.dtype)
        return np.concatenate([empty, *found])


def _kept(given: OwnData, kept: Mapping[str, np.ndarray]) -> OwnData:
    """The examples without those that were left out."""
    targets = {part: rows[kept[part]] for part, rows in given.targets.items()}
    weights = given.weights
    if weights is not None:
        weights = weights[kept[next(iter(targets))]]
    return given._replace(targets=targets, weights=weights)


def _write_examples(file: Path, given: OwnData, known: Mapping[str, Summary]) -> int:
    """Writes what is known of the examples; returns the file's CRC-32."""
    np.savez(file, **columns_of(given, known))  # type: ignore[arg-type]
    crc = 0
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside its place, which comes there when all is written, and else goes away."""
    check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f"{folder.name}.incomplete-{secrets.token_hex(4)}")
    new.mkdir()
    try:
        yield new
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
