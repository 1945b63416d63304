"""Paths as users give them in flags."""

import os
from collections.abc import Sequence

import fsspec
from etils import epath

from ensemble.errors import InputError, in_one_line


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is of a store and not of a disk."""
    return "://" in os.fspath(path)


def user_path(path: str | os.PathLike[str], flag: str) -> epath.Path:
    """A path as a user gives it, with `~` expanded: absolute, or remote (`gs://`).

    Args:
        path: of a file or folder, which need not exist.
        flag: that gives it, for messages.

    Raises:
        InputError: there can be no such path.
    """
    _check_text(path, flag)
    try:
        expanded = epath.Path(path).expanduser()
        is_of_nobody = os.fspath(expanded).startswith("~")
        if not is_remote(expanded):
            expanded = expanded.resolve()
        _check_text(expanded, flag)
        if os.fspath(expanded).startswith("gs://"):
            _be_patient()
        expanded.exists()  # A store whose package is not installed fails only when it is used.
    except KeyError:
        raise InputError(
            f"{flag}={path} begins with no known kind of store; write a local path, or gs://"
        ) from None
    except InputError:
        raise
    except Exception as error:  # Every store has errors of its own.
        raise InputError(f"{flag}={path} cannot be used: {in_one_line(error)}") from None
    if is_of_nobody:
        raise InputError(
            f"{flag}={path} is of a user who is not known here; write the path in full"
        )
    return expanded


def fresh_file(path: str, flag: str, endings: Sequence[str] = ()) -> epath.Path:
    """The path of a file to write, as a user gives it; a bucket has no folders that must exist.

    Args:
        path: of the file.
        flag: that gives it, for messages.
        endings: of which the file must have one; none: any will do.

    Raises:
        InputError: no file can be there, or one is.
    """
    found = user_path(path, flag)
    store, separator, name = os.fspath(found).partition("://")
    folder = epath.Path(f"{store}://{name.partition('/')[0]}") if separator else found.parent
    if path.endswith("/") or found.is_dir() or not folder.is_dir():
        kind = "bucket" if separator else "folder"
        raise InputError(f"{flag}={path} must name a file in a {kind} that exists")
    if endings and found.suffix.lower() not in endings:
        raise InputError(
            f"{flag}={path} must end in {' or '.join(endings)}, the form that is written"
        )
    if found.exists():
        raise InputError(f"{flag}={path} is there already; choose another name, or remove it")
    return found


def _be_patient() -> None:
    """Raises ImportError where gcsfs is not installed."""
    if fsspec.get_filesystem_class("gcs").__module__.startswith("gcsfs"):
        from ensemble.storage import object_store  # gcsfs is for those who have a bucket.

        object_store.register()


def _check_text(path: str | os.PathLike[str], flag: str) -> None:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{flag}={ascii(os.fspath(path))[1:-1]} is no UTF-8, as checkpoints need it; choose "
            "another name"
        ) from None
