"""Files that are written whole or not at all, and by one process at a time."""

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import fsspec
from etils import epath

from ensemble.storage.paths import is_remote

logger = logging.getLogger("ensemble")


def write_file(path: epath.Path, content: bytes | str) -> None:
    """Writes a file whole or not at all, also where the power fails: beside its place first."""
    write_together({path: content})


def write_by(path: epath.Path, write: Callable[[IO[bytes]], None]) -> None:
    """Writes a file whole or not at all, by what writes to an open file.

    Args:
        path: of the file; of one that is not on a disk the content is in a temporary file first.
        write: writes all of it.
    """
    if is_remote(path):
        with tempfile.NamedTemporaryFile() as local:
            write(local)
            local.flush()
            store, name = fsspec.url_to_fs(os.fspath(path))
            store.put_file(local.name, name)  # By parts of 50 MB.
        return
    with _unfinished(path) as (part, file):
        write(file)
        _flush(file)
        _rename(part, path)
    flush_folders([path.parent])


def write_together(contents: Mapping[epath.Path, bytes | str]) -> None:
    """Writes files whole or not at all, and none if there is no room for all of them.

    An object store writes each whole or not at all by itself, and has room.
    """
    encoded = {
        path: content.encode() if isinstance(content, str) else content
        for path, content in contents.items()
    }
    if any(map(is_remote, encoded)):
        for path, content in encoded.items():
            path.write_bytes(content)
        return
    with contextlib.ExitStack() as stack:
        parts = {}
        for path, content in encoded.items():
            parts[path], file = stack.enter_context(_unfinished(path))
            file.write(content)
            _flush(file)
        for path, part in parts.items():
            _rename(part, path)
    flush_folders(path.parent for path in encoded)


@contextlib.contextmanager
def _unfinished(path: epath.Path) -> Iterator[tuple[epath.Path, IO[bytes]]]:
    """A new file beside a path, open; removed in the end if it has not been renamed.

    No other process knows its name. It is locked while it is written, which tells it from what
    killed processes have left.
    """
    _remove_left(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with contextlib.ExitStack() as stack:
        is_new = False
        while not is_new:  # Another process may just have taken it for one that was left.
            part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
            file = stack.enter_context(os.fdopen(os.open(part, flags, 0o666), "w+b"))
            with contextlib.suppress(OSError):  # Not every disk can lock.
                fcntl.flock(file, fcntl.LOCK_EX)
            is_new = os.fstat(file.fileno()).st_nlink > 0
        try:
            yield part, file
        finally:  # What is written may be computed meanwhile, and interrupted.
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _remove_left(path: epath.Path) -> None:
    """Removes what killed processes have left of a file: parts that nobody has locked."""
    form = re.compile(rf"\.{re.escape(path.name)}(\.[0-9a-f]{{8}})?\.part")
    with contextlib.suppress(OSError):
        for name in filter(form.fullmatch, os.listdir(path.parent)):
            with contextlib.suppress(OSError):
                _remove_unlocked(os.path.join(path.parent, name))


def _remove_unlocked(part: str) -> None:
    """Removes a file or a link that no process has locked."""
    if os.path.islink(part):
        os.unlink(part)
        return
    with os.fdopen(os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # A disk that cannot lock: one process at a time writes there.
            pass
        os.unlink(part)


def _rename(part: epath.Path, path: epath.Path) -> None:
    if path.is_dir():  # Said by etils without its number.
        raise OSError(errno.EISDIR, f"{path.name}: {os.strerror(errno.EISDIR)}")
    part.replace(path)


def _flush(file: IO[bytes]) -> None:
    """Brings a file to the disk: else it may be empty, under its name, after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def flush(path: str | os.PathLike[str]) -> None:
    """Brings a file, or the names in a folder, to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def flush_folders(folders: Iterable[epath.Path]) -> None:
    """Brings the names in folders to the disk."""
    for folder in set(folders):
        try:
            flush(folder)
        except OSError as error:
            if error.errno not in _NO_FLUSH:
                raise


_NO_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
"""Errors of disks that flush no folders, and of folders that may be written to and not be read."""


def open_lock(path: epath.Path) -> IO[str]:
    """Opens a file to lock it: not by a link, and without a change to what is in it."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds a lock that the kernel releases when this process dies."""
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("another process holds %s: waiting until it has finished", file)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("%s cannot be locked (%s): start one process at a time", file, error)
        yield
