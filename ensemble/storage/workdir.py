"""A run's directory: what lies where, one run at a time, files whole or not at all."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from etils.epath import Path, PathLike

from ensemble.config import FORMAT, Config, build, differences, flatten
from ensemble.config.pieces import packages
from ensemble.errors import InputError, in_one_line
from ensemble.storage.files import is_remote, locked, user_path, write_file
from ensemble.storage.manifest import Json, Manifest, damaged, to_json

UNFINISHED = ".orbax-checkpoint-tmp"
"""What the name of a checkpoint ends with while Orbax writes it."""


def numbers_in(checkpoints: Path) -> list[int]:
    """Numbers of the checkpoints in a directory, the newest first."""
    there = checkpoints.iterdir() if checkpoints.exists() else ()
    return sorted((int(one.name) for one in there if one.name.isdecimal()), reverse=True)


class Workdir:
    """Paths of a workdir, local or remote (`gs://`).

    Args:
        path: Directory; `~` is expanded.

    Raises:
        InputError: There can be no such path.
    """

    def __init__(self, path: PathLike):
        self.path = user_path(path, "--workdir")
        self.config = self.path / "config.json"
        self.report = self.path / "results.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"
        self.predictions = self.path / "predictions"
        self.plots = self.path / "plots"
        self.draws = self.path / "draws"
        self.new_members = self.path / "new_members"
        self.manifest = Manifest(self.path)

    def of_new_members(self, first: int, last: int) -> Workdir:
        """The workdir of members that are yet to join; their events are a run of TensorBoard."""
        inner = Workdir(self.new_members)
        inner.events = self.events / f"members_{first:02d}-{last:02d}"
        return inner

    @property
    def newest_step(self) -> int:
        """Step of the newest checkpoint; 0 where there is none."""
        return max(numbers_in(self.checkpoints), default=0)

    @property
    def is_remote(self) -> bool:
        """Whether the directory is an object store's, which cannot lock or append."""
        return is_remote(self.path)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Creates the directory and holds it for one run.

        The lock is the kernel's (flock) and dies with its process, so a killed run leaves none. A
        bucket, or a disk without locks, is opened without one.

        Raises:
            InputError: It cannot be written, or another run holds it.
        """
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = locked(self.path / ".lock")
                if not self.is_remote and stack.enter_context(lock):
                    self._remove_unfinished()
                write_file(self.path / ".writable", "Can a file be written?")
                # A store may have heeded a removal that seemed to fail, and is then asked again.
                (self.path / ".writable").unlink(missing_ok=True)
            except BlockingIOError:
                raise InputError(
                    f"--workdir={self.path} is in use by another run; wait for its end or choose "
                    "another directory"
                ) from None
            except OSError as error:
                raise cannot_write(self.path, error.strerror or str(error)) from None
            yield

    def _remove_unfinished(self) -> None:
        """Removes files and checkpoints whose writing a kill interrupted.

        Orbax only does so if it saves that step.
        """
        for pattern in (".*.part", "*/.*.part", f"*/*{UNFINISHED}*", f"*/*/*{UNFINISHED}*"):
            for left in self.path.glob(pattern):
                left.rmtree() if left.is_dir() else left.unlink()

    @contextmanager
    def checkpoint_errors(self) -> Iterator[None]:
        """Turns what a checkpoint of another network makes its readers raise into one line.

        Raises:
            InputError: As said.
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
        """Refuses to write on in a workdir that somebody has removed.

        Raises:
            InputError: config.json, which a run writes first, is gone.
        """
        if not self.config.exists():
            raise cannot_write(self.path, f"{self.config} is gone")

    def write_config(self, config: Config, outer: Workdir | None = None) -> None:
        """Writes config.json, with the identity of the run that is there, or of a new one.

        Args:
            config: Configuration of the run.
            outer: Workdir of the run that this one is a part of.
        """
        values = flatten(config)
        before = self._content()
        kept = before or {
            "format": FORMAT,
            "packages": packages(values),
            "run": secrets.token_hex(16) if outer is None else outer.identity(),
        }
        text = to_json({**kept, "config": values})
        if json.loads(text) != before:
            self.manifest.write(self.config, text)

    def read_config(self) -> Json | None:
        """Reads config.json, in blocks; None where there is none.

        Raises:
            InputError: It is damaged, of another format or run, or names code that may not be
                imported.
        """
        content = self._content()
        return _checked(content) if content else None

    def identity(self) -> str:
        """The identity of the run that is here: a random number."""
        self.check_is_there()
        return str(self._content()["run"])

    def check_same_run(self, config: Config) -> None:
        """Refuses another experiment in a workdir that has a run.

        Raises:
            InputError: What differs, and what to do.
        """
        before = self.read_config()
        if before and (changed := differences(before, config.to_dict())):
            raise InputError(
                f"{self.path} holds a run with another configuration: {'; '.join(changed)}; "
                "restore these values or choose another --workdir"
            )

    def _content(self) -> Json:
        """The content of config.json; empty where there is none."""
        if not self.config.exists():
            return {}
        if not self.manifest.path.exists():
            raise damaged(self.manifest.path)
        # A kill may have come between it and its entry, whose file nobody else writes.
        content = self.manifest.read(self.config) or dict(json.loads(self.config.read_bytes()))
        if content["format"] != FORMAT:
            raise InputError(
                f"{self.config} has format {content['format']!r}, this version reads format "
                f"{FORMAT}; use the version that wrote it, or a new --workdir"
            )
        return content

    def read_report(self) -> Json:
        """Reads results.json; empty where there is none.

        Raises:
            InputError: It is damaged, of another run, or names code that may not be imported.
        """
        content = self.manifest.read(self.report)
        return {**content, "config": _checked(content)} if content else {}

    def selected(self) -> list[tuple[Workdir, list[int], list[float]]]:
        """Reads which members of other runs were selected; empty if this is no selection.

        Returns:
            Workdir of each run, and the numbers and weights of its members.

        Raises:
            InputError: A run is no longer there, or is another.
        """
        found = []
        for run in self.manifest.read(self.report).get("selection", {}).get("runs", ()):
            path = run["workdir"]
            if not is_remote(path):
                path = os.path.join(os.path.realpath(self.path), path)
            there = Workdir(path)
            expected = run["identity"], run["step"]
            if not there.config.exists() or (there.identity(), there.newest_step) != expected:
                raise InputError(
                    f"{self.path} refers to the run {there.path} at step {run['step']}, which is "
                    "not there, has gone on, or was replaced; put it back, or select again"
                )
            if run["members"]:
                found.append((there, run["members"], run["weights"]))
        return found


def _checked(content: Json) -> Json:
    """The configuration in a file, checked and in blocks."""
    return dict(build(content["config"], is_stored=True).config.to_dict())


def cannot_write(workdir: Path, reason: str) -> InputError:
    """The line for a workdir that a run cannot write to any more."""
    return InputError(
        f"{workdir} cannot be written: {reason}; free space or fix that there and run the same "
        "command: it resumes from the last whole checkpoint, if there is one"
    )


SEARCH = "search"
COMPARISON = "comparison of methods"


class Trial(NamedTuple):
    """A trial.

    Attributes:
        name: Folder of its run in `runs`.
        settings: Keys in which it differs from the configuration of all trials.
        seconds: Cost, over all processes.
        score: Lower is better; None: it failed, or is under way.
        failure: Why it failed; empty if it did not.
        details: Further results.
    """

    name: str
    settings: Mapping[str, Any]
    seconds: float = 0.0
    score: float | None = None
    failure: str = ""
    details: Mapping[str, Any] = {}

    @property
    def has_ended(self) -> bool:
        """Whether it has a score, or failed."""
        return self.score is not None or bool(self.failure)


def trials_file(work: Workdir) -> Path:
    """Path of the file."""
    return work.path / "trials.json"


def purpose_of(work: Workdir) -> str:
    """The purpose of the trials in a workdir; empty if it has none."""
    return str(work.manifest.read(trials_file(work)).get("purpose", ""))


_LARGEST = 1e30
"""Near the largest number that Matplotlib can draw."""


def read_metrics(path: Path) -> list[Json]:
    """Reads the records of a `metrics.jsonl`, without damaged ones; none if there is no file.

    Returns:
        Records with a step; null and numbers that no curve can have are NaN.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(Exception):  # A kill or a full disk may have spoiled a line.
            record = _drawable(json.loads(line), math.nan)
            records.append({**record, "step": int(record["step"])})
    return records


def as_lines(records: Iterable[Json]) -> str:
    """Records as the lines of a `metrics.jsonl`, with null for what `read_metrics` makes NaN."""
    return "".join(f"{json.dumps(_drawable(one, None))}\n" for one in records)


def _drawable(record: Json, instead: float | None) -> Json:
    """A record with another value for null and numbers that no curve can have."""
    return {
        name: instead
        if value is None or (isinstance(value, int | float) and not abs(value) < _LARGEST)
        else value
        for name, value in record.items()
    }
