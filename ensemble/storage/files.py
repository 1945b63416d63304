"""Files that are written whole or not at all, and by one process at a time."""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import fsspec
from etils import epath

from ensemble.storage.paths import is_remote

Content = bytes | str | Callable[[IO[bytes]], Any]
"""Content of a file, or a function that writes it to an open file."""


def write_file(path: epath.Path, content: Content) -> None:
    """Writes a file whole or not at all, also where the power fails: beside its place first.

    No other process knows the name of that place. `Workdir.opened` removes what killed processes
    have left there.
    """
    if is_remote(path):
        with tempfile.NamedTemporaryFile() as file:
            _fill(file, content)
            store, name = fsspec.url_to_fs(os.fspath(path))
            store.put_file(file.name, name)  # By parts of 50 MB.
        return
    part = os.fspath(path.parent / f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb+") as file:
            _fill(file, content)
            os.fsync(file.fileno())  # Else the file may be empty, after a power cut.
        os.replace(part, path)
    finally:  # What is written may be computed meanwhile, and interrupted.
        with contextlib.suppress(OSError):
            os.unlink(part)
    flush(path.parent)


def _fill(file: IO[bytes], content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)
    file.flush()


def make_folder(folder: epath.Path) -> None:
    """Makes a folder, but on a disk not the one that it lies in, which may have been removed."""
    folder.mkdir(parents=is_remote(folder), exist_ok=True)


def flush(folder: epath.PathLike) -> None:
    """Brings the names in a folder to a disk that can flush such, if it may be read."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextlib.contextmanager
def locked(path: epath.PathLike, in_use: Callable[[], None]) -> Iterator[bool]:
    """Holds a lock that the kernel releases when this process dies.

    Args:
        path: File that is locked, not by a link; its content stays as it is.
        in_use: Called if another process holds the lock, before this one waits for it.

    Yields:
        Whether the disk can lock.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o666), "r+") as file:
        can_lock = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            in_use()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            can_lock = False
        yield can_lock
