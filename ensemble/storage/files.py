"""Files that are written whole or not at all, and by one process at a time."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import NamedTemporaryFile
from typing import IO, Any

import fsspec
from etils.epath import Path, PathLike

from ensemble.errors import InputError, in_one_line, shown


def is_remote(path: PathLike) -> bool:
    """Whether a path is of a store and not of a disk."""
    return "://" in os.fspath(path)


def user_path(path: PathLike, flag: str) -> Path:
    """Makes a path of what a user gives, with `~` expanded: absolute, or remote (`gs://`).

    Args:
        path: Path of a file or folder, which need not exist.
        flag: Flag that gives it, for messages.

    Raises:
        InputError: There can be no such path.
    """
    try:
        found = Path(path).expanduser()
        if not is_remote(found):
            if os.fspath(found).startswith("~"):
                raise ValueError("there is no such user")
            found = found.resolve()
        elif os.fspath(found).startswith("gs://"):
            from ensemble.storage import object_store  # gcsfs is for those who have a bucket.

            object_store.register()
        os.fspath(found).encode()  # Checkpoints need UTF-8.
        found.exists()  # A store whose package is not installed fails only when it is used.
    except InputError:
        raise
    except Exception as error:  # Every store has errors of its own.
        reason = "no such kind of store" if isinstance(error, KeyError) else in_one_line(error)
        raise InputError(
            f"{flag}={shown(os.fspath(path))} cannot be used: {reason}; write a local path in "
            "full, or gs://BUCKET/NAME"
        ) from None
    return found


def fresh_file(path: str, flag: str, endings: Sequence[str] = ()) -> Path:
    """Makes a path of a file to write; a bucket has no folders that must exist.

    Args:
        path: Path of the file, as a user gives it.
        flag: Flag that gives it, for messages.
        endings: Endings of which the file must have one; empty: any will do.

    Raises:
        InputError: No file can be there, or one is.
    """
    found = user_path(path, flag)
    folder = found.parent
    if is_remote(found):
        folder = Path("/".join(os.fspath(found).split("/")[:3]))
    if path.endswith("/") or found.is_dir() or not folder.is_dir():
        raise InputError(f"{flag}={path} must name a file in a bucket or folder that exists")
    if endings and found.suffix.lower() not in endings:
        raise InputError(f"{flag}={path} must end in {' or '.join(endings)}")
    if found.exists():
        raise InputError(f"{flag}={path} is there already; choose another name, or remove it")
    return found


Content = bytes | str | Callable[[IO[bytes]], Any]
"""Content of a file, or a function that writes it to an open file."""


def write_file(path: Path, content: Content) -> None:
    """Writes a file whole or not at all, also where the power fails: beside its place first.

    No other process knows the name of that place. `Workdir.opened` removes what killed processes
    have left there.
    """
    if is_remote(path):
        with NamedTemporaryFile() as file:
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
        with suppress(OSError):
            os.unlink(part)
    flush(path.parent)


def _fill(file: IO[bytes], content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)
    file.flush()


def make_folder(folder: Path) -> None:
    """Makes a folder, but on a disk not the one that it lies in, which may have been removed."""
    folder.mkdir(parents=is_remote(folder), exist_ok=True)


def flush(folder: PathLike) -> None:
    """Brings the names in a folder to a disk that can flush such, if it may be read."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def locked(path: PathLike) -> Iterator[bool]:
    """Holds a lock that the kernel releases when this process dies.

    Args:
        path: File that is locked, not by a link; its content stays as it is.

    Yields:
        Whether the disk can lock.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o666), "r+") as file:
        can_lock = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            can_lock = False
        yield can_lock
