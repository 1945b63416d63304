"""A run's directory: what lies where, one run at a time, files whole or not at all."""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

import ml_collections
from absl import logging
from etils import epath

from ensemble.config import FORMAT
from ensemble.errors import UserError

WRITE_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO
)  # fmt: skip
"""What an `OSError` says where a directory cannot be written, and not that a program is wrong."""


class Workdir:
    """Paths of a workdir, local or remote (`gs://`).

    Args:
        path: of the directory; `~` is expanded.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = epath.Path(path).expanduser()
        if not self.is_remote:
            self.path = self.path.resolve()
        self.config = self.path / "config.json"
        self.report = self.path / "report.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"
        self.predictions = self.path / "predictions"
        self.plots = self.path / "plots"
        self.draws = self.path / "draws"

    @property
    def is_remote(self) -> bool:
        """Whether the directory is an object store's, which cannot lock or append."""
        return "://" in os.fspath(self.path)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Creates the directory and holds it for one run.

        The lock is the kernel's (flock) and dies with its process, so a killed run leaves none.

        Raises:
            UserError: it cannot be written, or another run holds it.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                if not self.is_remote:
                    self._lock(stack.enter_context(open(self.path / ".lock", "w")))
                write_text(self.path / ".writable", "Can a file be written?")
                (self.path / ".writable").unlink()
            except OSError as error:
                raise UserError(
                    f"--workdir={self.path} cannot be written: {error.strerror or error}; "
                    "choose another directory or free space there"
                ) from None
            yield

    def _lock(self, file: IO[str]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--workdir={self.path} is in use by another run; wait for its end or choose "
                "another directory"
            ) from None
        except OSError:
            logging.warning("%s cannot be locked: start one run at a time there.", self.path)

    def write_config(self, config: ml_collections.FrozenConfigDict) -> None:
        """Writes config.json."""
        write_json(self.config, {"format": FORMAT, "config": config.to_dict()})

    def read_config(self) -> dict[str, Any] | None:
        """Reads config.json; None where there is none.

        Raises:
            UserError: it or report.json is not one of ours, or of another format.
        """
        self.read_report()
        return _read_json(self.config)["config"] if self.config.exists() else None

    def read_report(self) -> dict[str, Any]:
        """Reads report.json; empty where there is none.

        Raises:
            UserError: it is not one of ours, or of another format.
        """
        return _read_json(self.report) if self.report.exists() else {}


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        number = content["format"]
        content["config"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is not a file of this program, or damaged; choose another --workdir, or "
            "remove it if the rest is sound"
        ) from None
    check_format(path, number)
    return content


def check_format(path: Any, number: Any) -> None:
    """Refuses a file of another format.

    Raises:
        UserError: its format number is not `FORMAT`.
    """
    if number != FORMAT:
        raise UserError(
            f"{path} has format {number!r}, this version reads format {FORMAT}; use the version "
            "that wrote it, or a new --workdir"
        )


def write_text(path: epath.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: epath.Path, content: bytes) -> None:
    """Writes a file whole or not at all: beside its place first, then renamed."""
    write_together({path: content})


def write_together(contents: Mapping[epath.Path, bytes | str]) -> None:
    """Writes files whole or not at all, and none if there is no room for all of them."""
    parts = {path: path.parent / f".{path.name}.part" for path in contents}
    try:
        for path, content in contents.items():
            parts[path].write_bytes(content.encode() if isinstance(content, str) else content)
        for path, part in parts.items():
            part.replace(path)
    except OSError:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise


def write_json(path: epath.Path, content: Mapping[str, Any]) -> None:
    """Writes a mapping as JSON, whole or not at all."""
    write_text(path, to_json(content))


def to_json(content: Mapping[str, Any]) -> str:
    """Returns a mapping as JSON; NaN and infinities become null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
