"""A run's directory: what lies where, one run at a time, files whole or not at all."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections
from etils import epath

from ensemble.config import FORMAT
from ensemble.errors import UserError


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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / ".writable", "")
            (self.path / ".writable").unlink()
        except OSError as error:
            raise UserError(
                f"--workdir={self.path} cannot be written: {error.strerror or error}; "
                "choose another directory or free space there"
            ) from None
        if self.is_remote:
            yield
            return
        with open(self.path / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"--workdir={self.path} is in use by another run; wait for its end or "
                    "choose another directory"
                ) from None
            except OSError:
                pass  # A file system without locks: then there is nothing to hold.
            yield

    def write_config(self, config: ml_collections.FrozenConfigDict) -> None:
        """Writes config.json."""
        write_json(self.config, {"format": FORMAT, "config": config.to_dict()})

    def read_config(self) -> dict[str, Any] | None:
        """Reads config.json; None where there is none.

        Raises:
            UserError: it is not one of ours, or of another format.
        """
        if not self.config.exists():
            return None
        try:
            content = json.loads(self.config.read_text())
            number, config = content["format"], content["config"]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.config} is not a configuration of this program; choose another --workdir"
            ) from None
        check_format(self.config, number)
        return config


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
    """Writes a file whole or not at all: beside its place first, then renamed."""
    part = path.parent / f".{path.name}.part"
    part.write_text(text)
    part.replace(path)


def write_json(path: epath.Path, content: Mapping[str, Any]) -> None:
    """Writes a mapping as JSON, whole or not at all; NaN and infinities become null."""
    write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
