"""Going on with what is in a workdir: what is saved, read back, and refused."""

import time
from typing import Any

import ml_collections
from absl import logging

from ensemble.config import differences
from ensemble.errors import UserError
from ensemble.run.progress import Clock
from ensemble.sharding import agreement, processes
from ensemble.sharding.signals import resume_line
from ensemble.storage.workdir import Workdir


def save(
    work: Workdir,
    checkpointer: Any,
    config: ml_collections.FrozenConfigDict,
    task: Any,
    method: Any,
    state: Any,
    writer: Any,
    clock: Clock,
) -> None:
    """Checkpoints everything that the next chunk, and a program that predicts, will need."""
    arrays, counters = method.to_host(state)
    if not processes.is_main():
        return
    work.check_is_there()
    meta = {
        "config": config.to_dict(),
        "counters": counters,
        "dataset": task.describe(),
        "sizes": writer.sizes(),
        "clock": clock.state(),
    }
    checkpointer.save(state.ticks, arrays, meta)


SAVE_SECONDS = 60.0
"""After so long a run of slow steps is saved, though no line of metrics is due."""


class Ending:
    """What is left of a run that is interrupted elsewhere than between two chunks, and its line.

    Args:
        checkpointer: of the run.
        num_steps: its goal.
        keep: whether there are checkpoints.

    Attributes:
        step: of the last checkpoint; None before the first.
    """

    def __init__(self, checkpointer: Any, num_steps: int, keep: bool):
        self._checkpointer, self._num_steps, self._keep = checkpointer, num_steps, keep
        self._saved = time.monotonic()
        self.step: int | None = None

    def note_saved(self, step: int) -> None:
        """Notes that a checkpoint of a step is on disk, or on its way."""
        self.step, self._saved = step, time.monotonic()

    def is_late(self) -> bool:
        """Whether too much would be lost, of several processes in the view of process 0."""
        late = self._keep and time.monotonic() - self._saved > SAVE_SECONDS
        return bool(agreement.tell(int(late)))

    def __call__(self) -> str:
        """Waits until the last checkpoint is whole; returns the line."""
        if not self._keep:
            return "interrupted; without a workdir nothing is kept"
        self._checkpointer.wait()
        if self.step is None:
            return f"interrupted before the first checkpoint; {resume_line()}"
        return (
            f"interrupted after the checkpoint of step {self.step} of {self._num_steps}; "
            f"{resume_line()}"
        )


def restore(work: Workdir, checkpointer: Any) -> tuple[Any, Any] | None:
    """Reads the newest checkpoint, `(arrays, meta)`, in the main process, for all."""
    arrays = None

    def read() -> Any:
        nonlocal arrays
        saved = checkpointer.restore_latest()
        if saved is None:
            if work.metrics.exists():
                logging.warning("%s has a run without a checkpoint: it starts again.", work.path)
            return None
        arrays, meta = saved
        return meta

    meta = processes.from_main(read)
    return None if meta is None else (processes.arrays_from_main(arrays), meta)


def check_same_experiment(config: ml_collections.FrozenConfigDict, work: Workdir) -> None:
    """Refuses another experiment in an old workdir, before anything slow happens.

    Raises:
        UserError: what differs, and what to do.
    """
    before = work.read_config()
    changed = differences(before, config.to_dict()) if before is not None else []
    if changed:
        raise UserError(
            f"{work.path} holds a run with another configuration: {'; '.join(changed)}; "
            "restore these values or choose another --workdir"
        )


def check_resumable(task: Any, method: Any, meta: Any, work: Workdir) -> None:
    """Refuses to go on with another experiment in an old workdir.

    Raises:
        UserError: what differs, and what to do.
    """
    now, then = task.describe(), meta["dataset"]
    if now["fingerprint"] != then["fingerprint"]:
        raise UserError(
            f"{work.path} holds a run on other data than {now['name']} has now; "
            "restore the data or choose another --workdir"
        )
    method.check_resumable(meta["counters"], str(work.path))
