"""Log of a run: scalars in `metrics.jsonl`, and these and pictures for TensorBoard."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ensemble.config.builtin import CALLBACKS
from ensemble.errors import in_own_code
from ensemble.notes import note
from ensemble.storage.files import make_folder, write_file
from ensemble.storage.metrics_log import as_lines, read_metrics
from ensemble.storage.workdir import Workdir


class Log:
    """Appends to a workdir's `metrics.jsonl` and to its TensorBoard events, without TensorFlow.

    All is written in the caller's thread: a full disk is an error here and now. An object store
    cannot append: its files grow in a local folder, and `flush` writes them whole.

    Args:
        work: Workdir of the run.
        purge_step: First step to be written. Records of it and later ones, which a process wrote
            after its last checkpoint, are removed; TensorBoard drops such events.
        on_metrics: Path of the user's function of steps and scalars, `config.on_metrics`.
        has_events: If False, write no events, as of a workdir that is not kept.
        is_main: If False, write nothing: of several processes only the main one does.

    Raises:
        InputError: There is no such function.
    """

    def __init__(
        self,
        work: Workdir,
        purge_step: int = 0,
        on_metrics: str | None = None,
        has_events: bool = True,
        is_main: bool = True,
    ):
        self._work = self._local = work
        self._purge_step = purge_step
        self._is_main = is_main
        self._has_events = has_events and is_main
        self._events: Any = None
        self._name = on_metrics
        self._stack = contextlib.ExitStack()
        self._on_metrics: Any = None
        if is_main:
            self._on_metrics = CALLBACKS.load(on_metrics) if on_metrics else None
            if work.is_remote:
                folder = tempfile.TemporaryDirectory()
                self._local = Workdir(self._stack.enter_context(folder))
            kept = [one for one in read_metrics(work.metrics) if one["step"] < purge_step]
            write_file(self._local.metrics, as_lines(kept))

    def describe(
        self, hparams: Mapping[str, Any], metrics: Sequence[str], charts: Mapping[str, str]
    ) -> None:
        """Describes the run to TensorBoard.

        Args:
            hparams: Configuration, flat, for the table of runs.
            metrics: Tags of the scalars that the table shows.
            charts: Titles of charts of several curves, in the tab Custom Scalars, and a regular
                expression of the tags of each.
        """
        # A tuple has no value, as None: TensorBoard cannot sort words and numbers.
        values = {
            name: () if one is None else one if isinstance(one, int | float | str) else str(one)
            for name, one in hparams.items()
        }
        lines = {title: ("Multiline", [f"{pattern}$"]) for title, pattern in charts.items()}

        def overview(summary: Any) -> Any:
            parts = (
                *summary.hparams(values, dict.fromkeys(metrics))[:2],
                summary.custom_scalars({"members": lines}),
            )
            return summary.Summary(value=[value for one in parts for value in one.value])

        self._event(0, overview)

    def scalars(self, step: int, scalars: Mapping[str, float], **extra: Any) -> None:
        """Writes scalars of a step.

        Args:
            step: On the x axis.
            scalars: By tag; those that no curve can have become null in `metrics.jsonl`.
            **extra: Further keys of the line in `metrics.jsonl`.
        """
        if not self._is_main:
            return
        with open(self._local.metrics, "a") as file:
            file.write(as_lines([{"step": step, **extra, **scalars}]))
        if scalars:
            parts = [{"tag": tag, "simple_value": one} for tag, one in scalars.items()]
            self._event(step, lambda summary: summary.Summary(value=parts))
        if self._on_metrics is not None:
            numbers = {tag: one for tag, one in extra.items() if isinstance(one, float)}
            try:
                self._on_metrics(step, numbers | {tag: float(one) for tag, one in scalars.items()})
            except Exception as error:  # A user's program may raise anything.
                self._on_metrics = None
                note(
                    f"config.on_metrics={self._name!r} failed {in_own_code(error)} at step {step}; "
                    "it is not called again."
                )

    def image(self, step: int, tag: str, image: np.ndarray) -> None:
        """Writes a picture [H, W, 3] uint8 to the events."""
        self._event(step, lambda summary: summary.image(tag, image, dataformats="HWC"))

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Writes a histogram of values [N] to the events; large ones that are alike have none."""
        with contextlib.suppress(ValueError):  # NumPy's, if float64 cannot separate edges of bins.
            self._event(step, lambda summary: summary.histogram(tag, values, bins="auto"))

    def _event(self, step: int, make: Callable[[Any], Any]) -> None:
        """Writes what `make` makes by `tensorboardX.summary` to the events."""
        if not self._has_events:
            return
        # It takes a second to import, longer than a first step may wait.
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        content = make(summary)
        now = time.time()
        if self._events is None:
            make_folder(self._local.events)
            # The name counts seconds; two starts within one must not share a file.
            self._events = event_file_writer.EventsWriter(
                str(self._local.events / "run"), filename_suffix=f".{time.time_ns()}"
            )
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=now, step=self._purge_step, session_log=start))
        self._events.write_event(Event(wall_time=now, step=step, summary=content))

    def flush(self) -> None:
        """Puts everything where another process can read it."""
        if self._events is not None:
            self._events.flush()
        if self._local is not self._work:
            write_file(self._work.metrics, self._local.metrics.read_bytes())
            for file in self._local.events.glob("*"):
                write_file(self._work.events / file.name, file.read_bytes())

    def close(self) -> None:
        """Flushes, and closes the event file."""
        self.flush()
        if self._events is not None:
            self._events.close()
        self._stack.close()
