"""`manifest.json` of a workdir: the digests of its files and checkpoints that are written whole.

A new file is written first, then its entry; an entry goes before its file is replaced or removed.
So a file without an entry is unfinished, whenever a run is killed, and nobody reads it.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from threading import Lock
from typing import Any

from etils.epath import Path

from ensemble.errors import InputError
from ensemble.storage.files import Content, write_file
from ensemble.storage.npz import Arrays, read_arrays

_lock = Lock()  # A checkpoint is finished in a thread of Orbax's.
Json = dict[str, Any]
"""An object of JSON, or what becomes one."""
_UNREAD = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""Files that Orbax writes last into a checkpoint, and nobody reads here."""


class Manifest:
    """The digests of a workdir's files.

    Args:
        folder: Workdir, local or remote.

    Attributes:
        path: Path of the file.
    """

    def __init__(self, folder: Path):
        self.path = folder / "manifest.json"
        self._folder = folder

    def entries(self) -> dict[str, str]:
        """Reads all digests, by paths from the workdir.

        Raises:
            InputError: The file is damaged.
        """
        if not self.path.exists():
            return {}
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            content = json.loads(self.path.read_bytes())
            files: dict[str, str] = content["files"]
            if content["digest"] == _digest_of(files):
                return files
        raise damaged(self.path)

    def add(self, path: Path, source: Path | None = None, gone: Iterable[str] = ()) -> None:
        """Enters a file, or the folder of a checkpoint.

        Args:
            path: Its path.
            source: Where it lies until it gets its name.
            gone: Names of entries that are forgotten in the same write.
        """
        self._change({**dict.fromkeys(gone), self._name(path): _digest(source or path)})

    def write(self, path: Path, content: Content | Json) -> None:
        """Writes a file, or a mapping as JSON, in place of an earlier one, and its entry."""
        self._change({self._name(path): None})
        write_file(path, to_json(content) if isinstance(content, dict) else content)
        self.add(path)

    def remove(self, path: Path) -> None:
        """Removes a file, which need not be there, and its entry."""
        self._change({self._name(path): None})
        path.unlink(missing_ok=True)

    def check(self, path: Path) -> bool:
        """Compares a file, or the folder of a checkpoint, with its digest.

        Returns:
            False if it is not there, or unfinished.

        Raises:
            InputError: It is damaged, or of another run.
        """
        expected = self.entries().get(self._name(path))
        if expected is None or not path.exists():
            return False
        with suppress(FileNotFoundError, zipfile.BadZipFile):
            # A file that is larger than it was is not read.
            if expected.startswith(f"{_size(path)} ") and _digest(path) == expected:
                return True
        if self.entries().get(self._name(path)) == expected and path.exists():
            raise damaged(path)
        return self.check(path)  # A run has replaced or removed it.

    def read(self, path: Path) -> Json:
        """Reads a JSON object; empty if there is no such file, or it is unfinished.

        Raises:
            InputError: It is damaged, or of another run.
        """
        return json.loads(path.read_bytes()) if self.check(path) else {}

    def read_npz(self, path: Path, prefixes: tuple[str, ...] = ("",)) -> Arrays:
        """Reads the arrays of an npz file whose names begin so; empty as of `read`.

        Raises:
            InputError: It is damaged, or of another run.
        """
        if not self.check(path):
            return {}
        try:
            with path.open("rb") as file:
                return read_arrays(file, prefixes=prefixes)
        except ValueError:
            raise damaged(path) from None

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _change(self, entries: Mapping[str, str | None]) -> None:
        with _lock:
            before = self.entries()
            after = {name: one for name, one in {**before, **entries}.items() if one is not None}
            if after != before or not self.path.exists():
                write_file(self.path, to_json({"files": after, "digest": _digest_of(after)}))


def damaged(path: Path) -> InputError:
    """The line for a file that is not what its run has written."""
    return InputError(
        f"{path} is damaged, or of another run; restore it from a copy, or start the run again in "
        "a new --workdir"
    )


def to_json(content: Json) -> str:
    """Returns a mapping as JSON; NaN and infinities become null."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return json.dumps(finite, indent=2) + "\n"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inner = sorted(one for one in path.iterdir() if one.name not in _UNREAD)
    return [file for one in inner for file in _files(one)]


def _size(path: Path) -> int:
    return sum(one.stat().length for one in _files(path))


def _digest(path: Path) -> str:
    """The bytes of a file or folder, and a digest.

    Of an npz file it is of names, sizes and CRCs, which are compared where arrays are read: so
    parts of large files can be read alone.
    """
    content: list[Any]
    if path.suffix == ".npz":
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            content = [(one.filename, one.file_size, one.CRC) for one in archive.infolist()]
    else:
        content = [
            (one.relative_to(path).as_posix(), blake2b(one.read_bytes()).hexdigest())
            for one in _files(path)
        ]
    return f"{_size(path)} {_digest_of(content)}"


def _digest_of(content) -> str:
    text = json.dumps(content, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()
