"""Scalars and pictures of a run: `metrics.jsonl` and TensorBoard events, without TensorFlow."""

import contextlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from ensemble.run.own_writers import OwnWriter
from ensemble.sharding import processes
from ensemble.storage.files import write_file
from ensemble.storage.metrics_log import parse_record
from ensemble.storage.workdir import Workdir, check_size

if TYPE_CHECKING:
    from ensemble.run.events import EventFile

logger = logging.getLogger("ensemble")


class Writer:
    """Appends to a workdir's `metrics.jsonl` and to its TensorBoard events.

    Events are written in the caller's thread: a full disk is an error here and now. Their file
    begins with the first scalar, picture or histogram, while the devices train already.

    Args:
        workdir: where to.
        sizes: of a `Writer` before, by file: what it has written beyond them is cut off, for it
            will be written again.
        purge_step: first step that will be written again; a TensorBoard that watches drops what
            it has from there on.
        own: writers of the user, which get all scalars too.
        has_events: whether there are TensorBoard events, which nobody will read of a workdir that
            is not kept.
    """

    def __init__(
        self,
        workdir: Workdir,
        sizes: Mapping[str, int] | None = None,
        purge_step: int = 0,
        own: Sequence[OwnWriter] = (),
        has_events: bool = True,
    ):
        sizes = sizes or {}
        self._path = workdir.metrics
        # An object store cannot append: there, files grow here, and are written whole by `flush`.
        self._append = not workdir.is_remote
        self._scratch = None if self._append else tempfile.TemporaryDirectory()
        self._events_dir = workdir.events
        self._purge_step = purge_step
        self._own = own
        self._has_events = has_events
        self._events: EventFile | None = None
        self._at_start: list[Callable[[EventFile], None]] = []
        self._kept = {name: size for name, size in sizes.items() if name != self._path.name}
        content = _whole_records(self._path, sizes.get(self._path.name, 0))
        write_file(self._path, content)
        self._num_bytes = len(content)
        self._content = bytearray() if self._append else bytearray(content)
        if self._append:
            _truncate_events(self._events_dir, self._kept)

    def sizes(self) -> dict[str, int]:
        """Flushes, and returns the bytes written so far, by file."""
        self.flush()
        files = {self._path.name: self._num_bytes, **self._kept}
        if self._events is not None:
            path = self._events.path
            files[path.name] = path.stat().st_size
        return files

    def scalars(self, step: int, scalars: Mapping[str, float], **extra: Any) -> None:
        """Writes scalars of a step.

        Args:
            step: of the x axis.
            scalars: by tag; not finite ones become null in `metrics.jsonl`.
            **extra: further keys of the line in `metrics.jsonl`.
        """
        values = {k: v if math.isfinite(v) else None for k, v in scalars.items()}
        self.record({"step": step, **extra, **values})
        if self._has_events:
            for tag, value in scalars.items():
                self._file().scalar(step, tag, value)
        for writer in self._own:
            numbers = {tag: value for tag, value in extra.items() if isinstance(value, float)}
            writer.scalars(step, {**numbers, **scalars})

    def record(self, record: Mapping[str, Any]) -> None:
        """Appends a line to `metrics.jsonl` alone."""
        line = (json.dumps(record) + "\n").encode()
        self._num_bytes += len(line)
        if not self._append:
            self._content += line
            return
        with open(self._path, "ab") as file:
            file.write(line)

    def image(self, step: int, tag: str, image: np.ndarray) -> None:
        """Writes a picture [H, W, 3] uint8 to the events."""
        if self._has_events:
            self._file().image(step, tag, image)

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Writes a histogram of values [N] to the events; large ones that are alike have none."""
        if self._has_events:
            self._file().histogram(step, tag, values)

    def hparams(self, hparams: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Enters the run in TensorBoard's table of runs, before anything else is written.

        Args:
            hparams: the configuration, flat.
            metrics: tags of the scalars that the table shows.
        """
        self._at_start.append(lambda events: events.hparams(hparams, metrics))

    def charts(self, charts: Mapping[str, str]) -> None:
        """Lays curves over each other, in the tab Custom Scalars of TensorBoard, as of `hparams`.

        Args:
            charts: a title, and a regular expression of the tags of the chart's scalars.
        """
        if charts:
            self._at_start.append(lambda events: events.charts(charts))

    def flush(self) -> None:
        """Puts everything where another process can read it."""
        if not self._append:
            write_file(self._path, bytes(self._content))
        if self._at_start and self._has_events:
            self._file()
        if self._events is not None:
            self._events.flush()
            if not self._append:
                path = self._events.path
                (self._events_dir / path.name).write_bytes(path.read_bytes())

    def close(self) -> None:
        """Flushes, and closes the event files."""
        self.flush()
        if self._events is not None:
            self._events.close()
        self._events = None
        if self._scratch is not None:
            self._scratch.cleanup()

    def _file(self) -> "EventFile":
        """The event file, which is begun when it is first asked for."""
        if self._events is None:
            # Imports tensorboardX, which takes longer than a first step may wait.
            from ensemble.run.events import EventFile

            self._events_dir.mkdir(parents=True, exist_ok=True)
            here = self._events_dir if self._scratch is None else self._scratch.name
            self._events = EventFile(here, self._purge_step)
        while self._at_start:
            self._at_start.pop(0)(self._events)
        return self._events


class NoWriter(Writer):
    """What the other processes have, of a run of several: only the main one writes."""

    def __init__(self) -> None:
        """Opens nothing."""

    def sizes(self) -> dict[str, int]:
        """Returns no files."""
        return {}

    def scalars(self, step: int, scalars: Mapping[str, float], **extra: Any) -> None:
        """Writes nothing."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def image(self, step: int, tag: str, image: np.ndarray) -> None:
        """Writes nothing."""

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Writes nothing."""

    def hparams(self, hparams: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Writes nothing."""

    def charts(self, charts: Mapping[str, str]) -> None:
        """Writes nothing."""

    def flush(self) -> None:
        """Has nothing to flush."""

    def close(self) -> None:
        """Has nothing to close."""


@contextlib.contextmanager
def open_writer(
    work: Workdir,
    sizes: Mapping[str, int],
    purge_step: int,
    own: Sequence[OwnWriter] = (),
    has_events: bool = True,
) -> Iterator[Writer]:
    """Opens what a run writes to; of several processes only the main one's writes.

    Args:
        work: where to.
        sizes: as of `Writer`.
        purge_step: as of `Writer`.
        own: as of `Writer`.
        has_events: as of `Writer`.
    """
    is_main = processes.is_main()
    writer = Writer(work, sizes, purge_step, own, has_events) if is_main else NoWriter()
    with contextlib.closing(writer):
        yield writer


def _truncate_events(directory: epath.Path, sizes: Mapping[str, int]) -> None:
    """Cuts event files to their sizes, and deletes those that have none; not in sub-folders."""
    if not directory.exists():
        return
    for path in directory.glob("run.out.tfevents.*"):
        if path.name in sizes:
            _truncate(path, min(sizes[path.name], path.stat().length))
        else:
            path.unlink()


def _truncate(path: epath.Path, size: int) -> None:
    """Cuts a file; one of several names, of a copy by links perhaps, is written anew."""
    if os.stat(path).st_nlink > 1:
        check_size(path)
        write_file(path, path.read_bytes()[:size])
    else:
        os.truncate(path, size)


def _whole_records(path: epath.Path, size: int) -> bytes:
    """The first `size` bytes of a file of JSON lines, without lines that are damaged."""
    content = b""
    if size and path.exists():
        check_size(path)
        content = path.read_bytes()[:size]
    lines = content.splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n") and parse_record(line) is not None]
    content = b"".join(whole)
    if len(content) < size:
        logger.warning("%s is damaged: some of what was measured before is lost.", path)
    return content
