"""Log of a run: scalars in `metrics.jsonl`, and these and pictures for TensorBoard."""

import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

from ensemble.config.builtin import CALLBACKS
from ensemble.errors import in_own_code
from ensemble.notes import note
from ensemble.storage.files import make_folder, write_file
from ensemble.storage.workdir import Workdir, as_lines, read_metrics


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
        self._stack = ExitStack()
        self._on_metrics: Any = None
        if is_main:
            self._on_metrics = CALLBACKS.load(on_metrics) if on_metrics else None
            if work.is_remote:
                folder = TemporaryDirectory()
                self._local = Workdir(self._stack.enter_context(folder))
            kept = [one for one in read_metrics(work.metrics) if one["step"] < purge_step]
            write_file(self._local.metrics, as_lines(kept))

    def describe(self, hparams: Any, metrics: Any, charts: Any) -> None:
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
        self.event(0, "hparams", values, dict.fromkeys(metrics))
        self.event(0, "custom_scalars", {"members": lines})

    def scalars(self, step: int, scalars: dict[str, float], **extra: Any) -> None:
        """Writes scalars of a step.

        Args:
            step: On the x axis.
            scalars: By tag; those that no curve can have become null in `metrics.jsonl`.
            **extra: Further keys of the line in `metrics.jsonl`.
        """
        if not self._is_main:
            return
        record = extra | scalars
        with open(self._local.metrics, "a") as file:
            file.write(as_lines([{"step": step, **record}]))
        if scalars:
            parts = [{"tag": tag, "simple_value": one} for tag, one in scalars.items()]
            self.event(step, "Summary", value=parts)
        if self._on_metrics is not None:
            numbers = {k: float(one) for k, one in record.items() if not isinstance(one, list)}
            try:
                self._on_metrics(step, numbers)
            except Exception as error:  # A user's program may raise anything.
                self._on_metrics = None
                note(
                    f"config.on_metrics={self._name!r} failed {in_own_code(error)} at step {step}; "
                    "it is not called again."
                )

    def event(self, step: int, kind: str, *args: Any, **options: Any) -> None:
        """Writes what a function of `tensorboardX.summary`, such as `image`, makes to the events.

        Args:
            step: On the x axis.
            kind: Name of the function.
            *args: For the function.
            **options: Likewise.
        """
        if not self._has_events:
            return
        # It takes a second to import, longer than a first step may wait.
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        made = getattr(summary, kind)(*args, **options)
        now = time.time()
        if self._events is None:
            make_folder(self._local.events)
            # The name counts seconds; two starts within one must not share a file.
            self._events = event_file_writer.EventsWriter(
                str(self._local.events / "run"), filename_suffix=f".{time.time_ns()}"
            )
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=now, step=self._purge_step, session_log=start))
        # Of `hparams`, all but the end of the run.
        for one in made[:2] if isinstance(made, tuple) else [made]:
            self._events.write_event(Event(wall_time=now, step=step, summary=one))

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
