"""Folders of records, `records:FOLDER`: examples on disk that are read by their indices.

`PART.array_record` holds the bytes of each example's inputs. `labels.npz` holds the targets and,
of the inputs, digests and extremes, so that splits are carved and normalised without reading
inputs. `records.json` holds the shape and dtype of an example and the names of classes. A folder
has its name only once it is whole.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.data.own_arrays import WEIGHTS, local_path, max_data_bytes
from ensemble.data.source import AnyStored, Examples, Parts, Request, Shape, Stored, Summary, slices
from ensemble.data.splitting import POOL, SPLITS, digest_examples
from ensemble.errors import CorruptDataError, InputError, in_one_line, logger
from ensemble.storage.npz import read_arrays

INDEX = "records.json"
_LABELS = "labels.npz"
_SUFFIX = ".array_record"
_COLUMNS = ("targets", *Summary._fields)
_READ = "readahead_buffer_size:0"  # For reading at random, as ArrayRecord's documentation has it.
_WRITE = "group_size:1,uncompressed"  # Pixels hardly shrink, and unpacking takes half of the time.


def _reader(file: Path, example: Shape, dtype: np.dtype):
    """Returns a function that reads inputs [n, ...] of a file of records by indices [n]."""
    from array_record.python.array_record_module import ArrayRecordReader  # Only for records.

    reader = ArrayRecordReader(str(file), _READ)
    lock = Lock()  # A reader is of one thread at a time, and has own threads.

    def read(rows: NDArray) -> NDArray:
        try:
            with lock:
                content = b"".join(reader.read(rows.tolist()))
            return np.frombuffer(content, dtype).reshape(len(rows), *example)
        except (RuntimeError, ValueError, IndexError) as error:
            for row in rows[:, None] if len(rows) > 1 else ():
                read(row)
            raise CorruptDataError(
                f"{file}: record {rows[0]} is damaged, or the file is truncated or of another "
                f"folder ({in_one_line(error, 70)})",
                "restore the file, or write the folder anew without what is damaged: ensemble "
                f"convert records:{file.parent} NEW_FOLDER --skip_damaged",
            ) from error

    return read


def given_records(name: str, request: Request) -> Parts:
    """The examples of a folder of records, as they were given.

    Args:
        name: `records:FOLDER`.
        request: how they are asked for, of which nothing matters here.

    Raises:
        InputError: there is no such folder, or it is damaged.
    """
    folder = local_path(name.partition(":")[2])
    if not (folder / INDEX).is_file():
        raise InputError(
            f"{name}: there is no {folder.absolute() / INDEX}; ensemble convert SOURCE FOLDER "
            "writes a folder of records"
        )
    parts = {}
    try:
        index = json.loads((folder / INDEX).read_text())
        arrays = read_arrays(folder / _LABELS, max_data_bytes())
        example = tuple(index["shape"])
        dtype = np.dtype(index["dtype"])
        names = index["class_names"]
        for part in (one for one in (POOL, *SPLITS) if f"{one}_targets" in arrays):
            targets, *columns = (arrays[f"{part}_{one}"] for one in _COLUMNS)
            known = Summary(*columns)
            file = folder / f"{part}{_SUFFIX}"
            if not file.is_file():
                raise ValueError(f"{file} is missing")
            read = _reader(file, example, dtype)
            with suppress(CorruptDataError):  # Whoever reads the record will name it.
                if digest_examples(read(np.arange(1))) != known.digests[:1]:
                    raise ValueError(f"{file} is of another folder")
            inputs = Stored(np.arange(len(targets)), example, dtype, read, known)
            parts[part] = Examples(inputs, targets)
    except (OSError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{name} is damaged or truncated ({in_one_line(error, 200)}); restore it, or write it "
            "again by ensemble convert"
        ) from error
    return Parts(parts, class_names=names and tuple(names), weights=arrays.get(WEIGHTS))


def write_records(
    given: Parts,
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
        InputError: the folder is there or cannot be written, an example cannot be read, or nothing
            is left of a part.
    """
    from array_record.python.array_record_module import ArrayRecordWriter  # As above.

    arrays: Any = {}
    done = 0
    with _new_folder(folder) as new:
        for part, (stored, targets) in given.parts.items():
            writer = ArrayRecordWriter(str(new / f"{part}{_SUFFIX}"), _WRITE)
            found = []
            for rows, block in _blocks(stored, skip_damaged):
                for one in block:
                    writer.write(one.tobytes())
                flat = block.reshape(len(block), -1)
                known = digest_examples(block), flat.min(axis=1), flat.max(axis=1)
                found.append((targets[rows], *known, rows))
                update(done + int(rows[-1]) + 1)
            writer.close()
            if not found:
                raise InputError(f"every example of {part} is damaged: there is nothing to write")
            *columns, rows = map(np.concatenate, zip(*found, strict=True))
            arrays |= {f"{part}_{k}": one for k, one in zip(_COLUMNS, columns, strict=True)}
            if given.weights is not None and part in (POOL, "train"):
                arrays[WEIGHTS] = given.weights[rows]
            done += len(stored)
        np.savez(new / _LABELS, **arrays)
        form = {"shape": stored.shape[1:], "dtype": stored.dtype.name}
        (new / INDEX).write_text(json.dumps({**form, "class_names": given.class_names}))
    return done - sum(len(one) for key, one in arrays.items() if key.endswith("_targets"))


def _blocks(stored: AnyStored, skip_damaged: bool) -> Iterator[Any]:
    """Row numbers [n] and inputs [n, ...] of what can be read, block by block."""
    every = np.arange(len(stored))
    for here in slices(len(stored), stored.shape[1:]):
        rows = every[here]
        try:
            yield rows, stored[here]
        except InputError as error:
            if not skip_damaged:
                raise InputError(
                    f"{error}, or leave out what cannot be read by --skip_damaged"
                ) from error
            for row in rows[:, None]:
                try:
                    yield row, stored[row]
                except InputError as fault:
                    logger.warning("left out: %s", fault)


def check_new(folder: Path) -> None:
    """Refuses to write over what is there.

    Raises:
        InputError: as said.
    """
    if folder.exists():
        raise InputError(f"{folder} is there already; choose a new folder, or remove it")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside its place, which comes there when all is written, and else goes away."""
    new = folder.with_name(f"{folder.name}.incomplete-{secrets.token_hex(4)}")
    try:
        new.mkdir(parents=True)
        yield new
        new.rename(folder)
    except (OSError, RuntimeError) as error:  # The latter of ArrayRecord.
        raise InputError(
            f"{folder} cannot be written ({in_one_line(error)}); free space there, or choose "
            "another folder"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
