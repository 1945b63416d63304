"""Paths as users give them in flags."""

import os
from collections.abc import Sequence

from etils import epath

from ensemble.errors import InputError, in_one_line, shown


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is of a store and not of a disk."""
    return "://" in os.fspath(path)


def user_path(path: epath.PathLike, flag: str) -> epath.Path:
    """Makes a path of what a user gives, with `~` expanded: absolute, or remote (`gs://`).

    Args:
        path: Path of a file or folder, which need not exist.
        flag: Flag that gives it, for messages.

    Raises:
        InputError: There can be no such path.
    """
    try:
        found = epath.Path(path).expanduser()
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


def fresh_file(path: str, flag: str, endings: Sequence[str] = ()) -> epath.Path:
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
        folder = epath.Path("/".join(os.fspath(found).split("/")[:3]))
    if path.endswith("/") or found.is_dir() or not folder.is_dir():
        raise InputError(f"{flag}={path} must name a file in a bucket or folder that exists")
    if endings and found.suffix.lower() not in endings:
        raise InputError(f"{flag}={path} must end in {' or '.join(endings)}")
    if found.exists():
        raise InputError(f"{flag}={path} is there already; choose another name, or remove it")
    return found
