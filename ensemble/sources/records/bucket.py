"""Folders of records in a bucket: copied to the disk of each machine once, and written there.

A copy lies in `flax-ensembles/records` in the user's cache folder. It is named by the folder's tag
and a digest of its place and its index, so that other data, another version of the same, and the
same index in another bucket have another one.
"""

import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from etils import epath

from ensemble.errors import UserError, in_one_line
from ensemble.sharding import processes, signals, startup
from ensemble.sources.own_arrays import local_path
from ensemble.sources.records.conversion import check_new
from ensemble.sources.records.index import EXAMPLES, INDEX, damage_named, parse_index
from ensemble.sources.records.shards import SUFFIX, shard_names
from ensemble.storage.files import locked, write_file
from ensemble.storage.paths import is_remote, user_path
from ensemble.storage.schema import MAX_BYTES

_PIECE_BYTES = 1 << 24
_AT_ONCE = 8
"""Pieces that are asked for together: one after the other would wait for the store each time."""
_LINE_SECONDS = 30.0
logger = logging.getLogger("ensemble")


def local_copy(name: str) -> Path:
    """The folder on the disk that holds the records of a bucket, which are copied where needed.

    Args:
        name: `records:` and what begins with `gs://` or another store's prefix.

    Raises:
        UserError: there is no such folder, or it is not whole, or there is no room for it.
    """
    path = name.partition(":")[2]
    store, root = fsspec.url_to_fs(os.fspath(user_path(path, "dataset")))
    with _named(name):
        try:
            content = store.cat_file(f"{root}/{INDEX}", start=0, end=MAX_BYTES + 1)
        except FileNotFoundError:
            raise UserError(
                f"{name} holds no {INDEX}; check the path, or write a folder of records there by "
                f"ensemble convert SOURCE {path}"
            ) from None
        store.invalidate_cache()  # Of another folder's state, in a process that lives for long.
        found = {PurePosixPath(one["name"]).name: one["size"] for one in store.ls(root, True)}
    with damage_named(name):
        index = parse_index(content)
    files = [EXAMPLES, *shard_names(index.lengths)]
    absent = [file for file in files if file not in found]
    if absent:
        raise UserError(f"{name}: {absent[0]} is missing; upload it again")
    key = hashlib.blake2b(store.unstrip_protocol(root).encode() + b"\n" + content, digest_size=8)
    folder = startup.cache_folder() / "records" / f"{index.tag}-{key.hexdigest()}"
    sizes = {file: int(found[file]) for file in files}
    try:
        if _missing(folder, sizes) or not _has_index(folder, content):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder.with_name(f".{folder.name}.lock")):
                if missing := _missing(folder, sizes):
                    _copy(name, store, root, folder, missing)
                write_file(epath.Path(folder / INDEX), content)
        origin = _origin(path)
        if not origin.is_file() or origin.read_bytes() != folder.name.encode():
            write_file(epath.Path(origin), folder.name.encode())
    except OSError as error:
        raise UserError(
            f"{name} cannot be copied to {folder} ({error.strerror or error}); free space there, "
            "or set $XDG_CACHE_HOME to another folder"
        ) from error
    return folder


def is_copied(name: str, data_dir: str | None = None) -> bool:
    """Whether records are on the disk; the bucket that they may be named in is not asked.

    Args:
        name: `records:` and a folder, on a disk or in a bucket.
        data_dir: of TFDS sets, which matters to others.
    """
    path = name.partition(":")[2]
    if not is_remote(path):
        return True
    try:
        origin = _origin(path)
        return (origin.parent / origin.read_text() / INDEX).is_file()
    except (OSError, ValueError):
        return False


def _origin(path: str) -> Path:
    """The file that has the name of the copy of a folder in a bucket."""
    digest = hashlib.sha256(path.rstrip("/").encode("utf-8", "surrogatepass")).hexdigest()
    return startup.cache_folder() / "records" / f".{digest[:32]}.origin"


def _missing(folder: Path, sizes: Mapping[str, int]) -> dict[str, int]:
    """Finds the files, by their sizes, that a copy does not have, or not of this size."""
    return {
        file: size
        for file, size in sizes.items()
        if not (folder / file).is_file() or (folder / file).stat().st_size != size
    }


def _has_index(folder: Path, content: bytes) -> bool:
    """Whether a copy has its index, which is written last."""
    return (folder / INDEX).is_file() and (folder / INDEX).read_bytes() == content


def _copy(name: str, store: Any, root: str, folder: Path, sizes: Mapping[str, int]) -> None:
    """Copies files, each of which has its name once it is whole.

    Args:
        name: of the data, for messages.
        store: that has them.
        root: the folder there.
        folder: the folder here.
        sizes: of the files.
    """
    for left in folder.glob(".*.part"):  # By a process that was killed.
        left.unlink()
    total, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if total > free:
        raise UserError(
            f"{name} takes {total / 1e6:,.1f} MB of {folder.parent}, where {free / 1e6:,.1f} MB "
            "are free; free space there, or set $XDG_CACHE_HOME to another folder"
        )
    with _Told(f"copying {name} to {folder}", total) as told:
        for file, size in sizes.items():
            part = folder / f".{file}.{os.getpid()}.part"
            try:
                with part.open("wb") as opened:
                    for content in _pieces(name, store, f"{root}/{file}", size):
                        opened.write(content)
                        told.add(len(content))
                        if processes.count() == 1:
                            signals.check()
                part.replace(folder / file)
            except BaseException:
                part.unlink(missing_ok=True)
                raise


def _pieces(name: str, store: Any, file: str, size: int) -> Iterator[bytes]:
    """The content of a file, in order; some pieces ahead are asked for meanwhile."""

    def piece(start: int) -> bytes:
        end = min(start + _PIECE_BYTES, size)
        with _named(name):
            content: bytes = store.cat_file(file, start=start, end=end)
        if len(content) != end - start:
            raise UserError(f"{name}: {file} has changed while it was copied; try again")
        return content

    starts = iter(range(0, size, _PIECE_BYTES))
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        first = itertools.islice(starts, _AT_ONCE)
        coming = collections.deque(pool.submit(piece, start) for start in first)
        try:
            while coming:
                yield coming.popleft().result()
                coming.extend(pool.submit(piece, start) for start in itertools.islice(starts, 1))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[Path]:
    """Says where a folder of records is written: itself, or one on the disk that is then uploaded.

    Args:
        target: a path that is not there, on a disk or in a bucket.

    Raises:
        UserError: it is there, or cannot be written.
    """
    if not is_remote(target):
        folder = local_path(target)
        check_new(folder)
        yield folder
        return
    store, root = fsspec.url_to_fs(os.fspath(user_path(target, "FOLDER")))
    with _named(target, "written"):
        names = {PurePosixPath(one).name for one in store.find(root)}
    left = {one for one in names if one == EXAMPLES or one.endswith(SUFFIX)}
    if names - left:
        raise UserError(f"{target} is there already; choose a new folder, or remove it")
    if left:
        logger.warning("%s holds part of a folder, which has no %s; writing anew.", target, INDEX)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "records"
        yield folder
        files = sorted(folder.iterdir(), key=lambda file: (file.name == INDEX, file.name))
        sizes = [file.stat().st_size for file in files]
        with _Told(f"uploading {target}", sum(sizes)) as told:
            for file, size in zip(files, sizes, strict=True):
                with _named(target, "written"):
                    store.put_file(str(file), f"{root}/{file.name}")
                told.add(size)


@contextlib.contextmanager
def _named(what: str, done: str = "read") -> Iterator[None]:
    """Turns a store's errors into one line.

    Args:
        what: is read or written.
        done: which of the two.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Every store has errors of its own.
        raise UserError(f"{what} cannot be {done}: {in_one_line(error)}") from error


class _Told(contextlib.AbstractContextManager["_Told"]):
    """Says in the log what is going on, and how far it is.

    Args:
        what: is going on.
        total: bytes.
    """

    def __init__(self, what: str, total: int):
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.monotonic()

    def __enter__(self) -> "_Told":
        logger.info("%s: %.1f MB", self._what, self._total / 1e6)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            logger.info("%s: took %.1f s", self._what, time.monotonic() - self._began)

    def add(self, num_bytes: int) -> None:
        """Notes that some more bytes are there."""
        self._done += num_bytes
        now = time.monotonic()
        if now - self._last > _LINE_SECONDS:
            self._last = now
            left = (now - self._began) / self._done * (self._total - self._done)
            line = "%s: %.1f of %.1f MB; %.0f s left"
            logger.info(line, self._what, self._done / 1e6, self._total / 1e6, left)
