"""What a run shows while it lives: scalars, pictures, progress, members that fail."""

from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np
from absl import logging
from clu import parameter_overview

from ensemble import metrics, report
from ensemble.classification import Classification
from ensemble.errors import RunFailed
from ensemble.members import Status
from ensemble.progress import Clock, Progress
from ensemble.sgd import SGD, ChunkInfo, SGDState
from ensemble.writer import Writer


class Monitor:
    """Writes what a method reports, one chunk behind it, so that the devices never wait.

    Args:
        config: of the run.
        task: what is learned.
        method: what learns it.
        writer: of metrics and events.
        progress: bar and log.
        clock: of the run.
    """

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Classification,
        method: SGD,
        writer: Writer,
        progress: Progress,
        clock: Clock,
    ):
        self._config = config
        self._task = task
        self._method = method
        self._writer = writer
        self._progress = progress
        self._clock = clock
        self._pending: ChunkInfo | None = None
        self._compiling = True
        self._failed: set[int] = set()
        self.none_active = False
        """Whether all members have stopped or failed, as of the last chunk written."""
        self._validation = task.dataset.splits.get("validation")
        self.headline_tags = [
            f"validation/ensemble/{name}"
            for name in ("accuracy", "nll", "ece")
            if self._validation is not None
        ]

    def note_resumed(self, state: SGDState) -> None:
        """Takes over what an earlier process knew of the members."""
        status = self._method.status(state)
        self._failed = {k for k, value in status.items() if value == Status.NON_FINITE}
        self.none_active = state.waiting is None and Status.ACTIVE not in status.values()

    def log_parameters(self, state: SGDState) -> None:
        """Logs the shapes and sizes of one member's parameters."""
        parameters = self._method.parameters(state)
        overview = parameter_overview.get_parameter_overview(parameters, include_stats=False)
        logging.info("Parameters of a member:\n%s", overview)

    def chunk_dispatched(self, info: ChunkInfo) -> None:
        """Takes the diagnostics of a new chunk, and writes those of the one before.

        A process's first chunk compiles; it is waited for, and counts in no rate.

        Raises:
            RunFailed: no member is alive, or one failed and `config.on_nonfinite` is 'stop'.
        """
        self.flush()
        self._pending = info
        if self._compiling:
            self.flush()

    def flush(self) -> None:
        """Waits for the chunk on the devices and writes its diagnostics.

        Raises:
            RunFailed: as `chunk_dispatched`.
        """
        info, self._pending = self._pending, None
        if info is None:
            return
        status = self._method.status(info)  # Waits.
        rate = {}
        if self._compiling:
            self._clock.compiled()
            self._compiling = False
        else:
            member_examples = info.num_examples * len(info.indices)
            rate["train/member_examples_per_second"] = self._clock.chunk_done(member_examples)
        self._note_failures(info.step, status, info.num_waiting)
        scalars = self._method.scalars(info)
        for k in self._failed:
            scalars = {tag: v for tag, v in scalars.items() if f"/member_{k:02d}/" not in tag}
        self._write(info, scalars | rate)
        self.none_active = not info.num_waiting and Status.ACTIVE not in status.values()
        self._progress.update(info.step)

    def evaluate(self, state: SGDState) -> None:
        """Scores the live members and their mean on the validation split, and draws pictures."""
        self.flush()
        if state.waiting is not None and self._failed.issuperset(state.indices):
            return  # No newcomer is left to score; those that wait go on.
        if self._validation is None:
            return
        predictions, status = report.live_predictions(self._method, state, ["validation"])
        self._note_failures(state.step, status)
        log_probs = predictions["validation"]
        summary = metrics.summarise(log_probs, self._validation.labels)
        numbers = [k for k in status if status[k] != Status.NON_FINITE]
        scalars = {
            f"validation/member_{k:02d}/{name}": summary["members"][name][i]
            for name in report.SCORES
            for i, k in enumerate(numbers)
        }
        # Newcomers that catch up are not the ensemble.
        for group in ["ensemble", "diversity"] if state.waiting is None else []:
            scalars |= {f"validation/{group}/{name}": v for name, v in summary[group].items()}
        self._write(state, scalars)
        self._progress.log(
            state.step,
            self._method.epoch(state.step),
            {
                "validation accuracy": summary["ensemble"]["accuracy"],
                "NLL": summary["ensemble"]["nll"],
                "mean member's NLL": float(np.mean(summary["members"]["nll"])),
            },
        )
        self._draw(state, log_probs)

    def _draw(self, state: SGDState, log_probs: np.ndarray) -> None:
        from ensemble import plot_style

        every = self._config.plot_every_epochs * self._method.steps_per_epoch
        if state.waiting is not None or (state.step % every and not self._method.finished(state)):
            return
        for name, figure in report.split_figures(self._task, "validation", log_probs).items():
            image = plot_style.figure_to_array(figure)
            self._writer.image(state.step, f"validation/{name}", image)
        self._writer.histogram(
            state.step, "validation/entropy", metrics.uncertainty(log_probs)["total"]
        )

    def _write(self, at: ChunkInfo | SGDState, scalars: Mapping[str, float]) -> None:
        """Writes scalars; newcomers that catch up are shown as a run of their own."""
        first, last = at.indices[0], at.indices[-1]
        extra: dict[str, Any] = {"epoch": self._method.epoch(at.step)}
        run = ""
        if first:
            extra["members"] = [first, last]
            run = f"members_{first:02d}-{last:02d}"
        if self._failed:
            extra["failed_members"] = sorted(self._failed)
        self._writer.scalars(at.step, scalars, run=run, **extra)

    def _note_failures(self, step: int, status: Mapping[int, Status], num_waiting: int = 0) -> None:
        new = {k for k, s in status.items() if s == Status.NON_FINITE} - self._failed
        self._failed |= new
        for k in sorted(new):
            logging.warning(
                "Member %d became non-finite by step %d: it is frozen and left out of every mean.",
                k,
                step,
            )
        remedy = f"lower config.learning_rate={self._config.learning_rate}"
        if new and self._config.on_nonfinite == "stop":
            raise RunFailed(
                f"member {min(new)} became non-finite by step {step}, and "
                f"config.on_nonfinite='stop'; {remedy}"
            )
        if self._failed.issuperset(status) and not num_waiting:
            raise RunFailed(
                f"all of the {len(status)} members in training became non-finite by step {step}; "
                f"{remedy}"
            )
