"""A run's directory: what lies where, one run at a time, files whole or not at all."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import IO, Any

import ml_collections
from etils import epath

from ensemble.config import FORMAT, flatten
from ensemble.config.pieces import packages
from ensemble.errors import InputError, in_one_line, shown
from ensemble.storage import identity, json_files
from ensemble.storage.files import open_lock, write_file
from ensemble.storage.manifest import Manifest
from ensemble.storage.paths import is_remote, user_path

logger = logging.getLogger("ensemble")

UNFINISHED = ".orbax-checkpoint-tmp"
"""What the name of a checkpoint ends with while Orbax writes it."""

_NO_LOCK = "%s cannot be locked: start one run at a time there."


class Workdir:
    """Paths of a workdir, local or remote (`gs://`).

    Args:
        path: of the directory; `~` is expanded.

    Raises:
        InputError: there can be no such path.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = user_path(path, "--workdir")
        self.config = self.path / "config.json"
        self.report = self.path / "results.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"
        self.predictions = self.path / "predictions"
        self.plots = self.path / "plots"
        self.draws = self.path / "draws"
        self.new_members = self.path / "newcomers"
        self.manifest = Manifest(self.path)

    def of_new_members(self, first: int, last: int) -> "Workdir":
        """The workdir of members that are yet to join; their events are a run of TensorBoard."""
        inner = Workdir(self.new_members)
        inner.events = self.events / f"members_{first:02d}-{last:02d}"
        return inner

    @property
    def is_remote(self) -> bool:
        """Whether the directory is an object store's, which cannot lock or append."""
        return is_remote(self.path)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Creates the directory and holds it for one run.

        The lock is the kernel's (flock) and dies with its process, so a killed run leaves none.

        Raises:
            InputError: it cannot be written, or another run holds it, or it is the root folder.
        """
        if not self.is_remote and self.path == self.path.parent:
            raise InputError(f"--workdir={self.path} is the root folder; name one of the run's own")
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                if self.is_remote:
                    logger.warning(_NO_LOCK, self.path)
                elif self._lock(stack.enter_context(open_lock(self.path / ".lock"))):
                    self._remove_unfinished()
                write_file(self.path / ".writable", "Can a file be written?")
                (self.path / ".writable").unlink()
            except OSError as error:
                raise InputError(
                    f"--workdir={self.path} cannot be written: {error.strerror or error}; "
                    "choose another directory or free space there"
                ) from None
            yield

    def _lock(self, file: IO[str]) -> bool:
        """Whether the disk can lock."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            raise InputError(
                f"--workdir={self.path} is in use by another run; wait for its end or choose "
                "another directory"
            ) from None
        except OSError:
            logger.warning(_NO_LOCK, self.path)
        return False

    def _remove_unfinished(self) -> None:
        """Removes checkpoints that a kill interrupted: Orbax only does if it saves that step."""
        for directory in (self.checkpoints, self.new_members / self.checkpoints.name):
            for left in directory.glob(f"*{UNFINISHED}*"):
                left.rmtree() if left.is_dir() else left.unlink()

    @contextlib.contextmanager
    def checkpoint_errors(self) -> Iterator[None]:
        """Turns what a checkpoint of another network makes its readers raise into one line.

        Raises:
            InputError: as said.
        """
        try:
            yield
        except InputError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.checkpoints} does not fit this program ({in_one_line(error)}); restore the "
                "network that the run began with, or choose another --workdir"
            ) from error

    def check_is_there(self) -> None:
        """Refuses to write on in a workdir that somebody has removed, or is removing.

        Raises:
            InputError: config.json, which a run writes first, is gone.
        """
        if not self.config.exists():
            raise cannot_write(self.path, os.strerror(errno.ENOENT))

    def write_config(
        self, config: ml_collections.FrozenConfigDict, outer: "Workdir | None" = None
    ) -> None:
        """Writes config.json, with the identity of the run that is there, or of a new one.

        Args:
            config: of the run.
            outer: the workdir of the run that this one is a part of.
        """
        values, before = flatten(config), self._content()
        kept = before or {
            "format": FORMAT,
            "packages": packages(values),
            "run": secrets.token_hex(16) if outer is None else outer.identity(),
            "jax": identity.flags(),
        }
        content = {**kept, "config": values}
        if json.loads(json_files.to_json(content)) != before:
            self.manifest.write(self.config, json_files.to_json(content))

    def read_config(self) -> dict[str, Any] | None:
        """Reads config.json; None where there is none.

        Raises:
            InputError: it is damaged, or of another format or run.
        """
        content = self._content()
        return json_files.stored_config(content["config"]) if content else None

    def identity(self) -> str:
        """The identity of the run that is here: a random number.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not self.config.exists():
            raise InputError(
                f"{self.config} is missing; restore it from a copy, or choose another --workdir"
            )
        return str(self._content()["run"])

    def check_flags(self) -> None:
        """Refuses to go on where JAX computes other numbers than when the run began.

        Raises:
            InputError: as said.
        """
        identity.check_flags(self.path, self._content().get("jax", {}))

    def _content(self) -> dict[str, Any]:
        """The content of config.json; empty where there is none."""
        if not self.config.exists():
            return {}
        if not self.manifest.path.exists():
            raise InputError(
                f"{self.manifest.path} is missing; restore it from a copy, or choose another "
                "--workdir"
            )
        # A kill may have come between it and its entry, whose file nobody else writes.
        return self._read(self.config) or json_files.parse(self.config.read_bytes())

    def _read(self, path: epath.Path) -> dict[str, Any]:
        content = self.manifest.read(path)
        if content:
            check_format(path, content["format"])
        return content

    def read_report(self) -> dict[str, Any]:
        """Reads results.json; empty where there is none.

        Raises:
            InputError: it is damaged, or of another format or run.
        """
        content = self._read(self.report)
        return json_files.with_config(content) if content else {}

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Writes results.json."""
        self.manifest.write(self.report, json_files.to_json(report))


def write_error(workdir: epath.Path, error: OSError) -> InputError:
    """The line for what the system says while a run reads data and writes to its workdir."""
    reason = error.strerror or str(error)
    where = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else ""
    if where and os.path.isabs(where) and not where.startswith(os.fspath(workdir)):
        return InputError(f"{shown(where)} cannot be used: {in_one_line(reason)}; fix that")
    return cannot_write(workdir, reason)


def cannot_write(workdir: epath.Path, reason: str) -> InputError:
    """The line for a workdir that a run cannot write to any more."""
    is_full = any(os.strerror(number) in reason for number in (errno.ENOSPC, errno.EDQUOT))
    is_there = (workdir / "config.json").exists() and os.strerror(errno.ENOENT) not in reason
    if not workdir.exists() or not (is_full or is_there):
        return InputError(
            f"{workdir}, or what is in it, was removed while the run wrote to it; restore it and "
            "run the same command, or start the run again"
        )
    return InputError(
        f"{workdir} cannot be written: {reason}; {'free space' if is_full else 'fix that'} there "
        "and run the same command: it resumes from the last whole checkpoint"
    )


def check_format(path: Any, number: Any) -> None:
    """Refuses a file of another format.

    Raises:
        InputError: its format number is not `FORMAT`.
    """
    if number != FORMAT:
        raise InputError(
            f"{path} has format {in_one_line(repr(number))}, this version reads format {FORMAT}; "
            "use the version that wrote it, or a new --workdir"
        )
