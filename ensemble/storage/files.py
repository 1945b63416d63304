"""Files that are written whole or not at all, and by one process at a time."""

import contextlib
import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import fsspec
from etils import epath

from ensemble.storage.paths import is_remote
from ensemble.storage.schema import to_json

logger = logging.getLogger("ensemble")


def write_text(path: epath.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: epath.Path, content: bytes) -> None:
    """Writes a file whole or not at all: beside its place first, then renamed."""
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
    part = path.parent / f".{path.name}.part"
    try:
        with _new(part) as file:
            write(file)
        if path.is_dir():
            raise OSError(errno.EISDIR, f"{path.name}: {os.strerror(errno.EISDIR)}")
        part.replace(path)
    except BaseException:  # What is written may be computed meanwhile, and interrupted.
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


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
    parts = {path: path.parent / f".{path.name}.part" for path in encoded}
    try:
        for path, content in encoded.items():
            _create(parts[path], content)
        for path, part in parts.items():
            if path.is_dir():  # Said by etils without its number.
                raise OSError(errno.EISDIR, f"{path.name}: {os.strerror(errno.EISDIR)}")
            part.replace(path)
    except OSError:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise


def _create(path: epath.Path, content: bytes) -> None:
    """Writes a file that is new: what is there, a link to others' files perhaps, is removed."""
    with _new(path) as file:
        file.write(content)


def _new(path: epath.Path) -> IO[bytes]:
    """Opens a file that is new, as `_create` says."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "w+b")


def write_json(path: epath.Path, content: Mapping[str, Any]) -> None:
    """Writes a mapping as JSON, whole or not at all."""
    write_text(path, to_json(content))


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
