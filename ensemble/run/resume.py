"""Going on with what is in a workdir: what is saved, read back, and refused."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import ml_collections
import numpy as np

from ensemble.config import differences
from ensemble.draws.store import Draws
from ensemble.errors import Interrupted, UserError
from ensemble.method import Info, Method, Recorded, Spread, State, describe
from ensemble.notes import recall, said
from ensemble.run.progress import Clock
from ensemble.run.writer import Writer
from ensemble.sharding import processes
from ensemble.sharding.signals import resume_line
from ensemble.storage import old, packages
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.schema import checked_meta
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")


class Saved(NamedTuple):
    """What a checkpoint says.

    Attributes:
        arrays: of the method's state.
        counters: of the method's state.
        sizes: of the files that grow, by name: what is beyond them is written again.
        clock: what `Clock` has kept.
        notes: what has been said of the run.
    """

    arrays: dict[str, Any]
    counters: dict[str, int]
    sizes: dict[str, int]
    clock: dict[str, Any]
    notes: Sequence[str] = ()


def save(
    work: Workdir,
    checkpointer: Checkpointer,
    method: Method[State, Info],
    state: State,
    writer: Writer,
    clock: Clock,
) -> None:
    """Checkpoints everything that the next chunk, and a program that predicts, will need."""
    if checkpointer.is_shared or processes.is_main():
        checkpointer.wait()  # Else the copies of two checkpoints were in memory.
    if checkpointer.is_shared and isinstance(method, Spread):
        arrays, counters = method.to_parts(state)
    else:
        arrays, counters = method.to_host(state)
    if checkpointer.is_shared or processes.is_main():
        sizes, seconds = writer.sizes(), clock.state()
        save_arrays(work, checkpointer, method, Saved(arrays, counters, sizes, seconds, said()))


def save_arrays(
    work: Workdir, checkpointer: Checkpointer, method: Method[State, Info], saved: Saved
) -> None:
    """Checkpoints what a state is on the host, in every process that the checkpointer has."""

    def meta() -> dict[str, Any]:
        work.check_is_there()
        return {
            "identity": work.identity(),
            "config": method.config.to_dict(),
            "counters": saved.counters,
            "dataset": describe(method),
            "sizes": saved.sizes,
            "clock": saved.clock,
            "notes": list(saved.notes),
        }

    checkpointer.save(saved.counters["step"], saved.arrays, checkpointer.from_main(meta))


def write_config(work: Workdir, method: Method[State, Info], outer: Workdir | None = None) -> None:
    """Says in a workdir, in the main process, which run it holds.

    Args:
        work: of the run.
        method: of the run.
        outer: of the run that it is a part of.
    """
    work.write_config(method.config, describe(method).get("fingerprint"), outer)


SAVE_SECONDS = 60.0
"""After so long a run of slow steps is saved, though no line of metrics is due."""


class Ending:
    """What is left of a run that is interrupted elsewhere than between two chunks, and its line.

    Args:
        checkpointer: of the run.
        num_steps: its goal.
        keep: whether there are checkpoints.
        saved: the checkpoint that the run goes on from; None: it begins.

    Attributes:
        step: of the last checkpoint; None before the first.
    """

    def __init__(self, checkpointer: Checkpointer, num_steps: int, keep: bool, saved: Saved | None):
        self._checkpointer, self._num_steps, self._keep = checkpointer, num_steps, keep
        self._saved = time.monotonic()
        self.step: int | None = None if saved is None else saved.counters["step"]

    def note_saved(self, step: int) -> None:
        """Notes that a checkpoint of a step is on disk, or on its way."""
        self.step, self._saved = step, time.monotonic()

    def is_late(self) -> bool:
        """Whether too much would be lost, of several processes in the view of process 0."""
        late = self._keep and time.monotonic() - self._saved > SAVE_SECONDS
        return bool(processes.tell(int(late)))

    def interrupt(self, step: int) -> NoReturn:
        """Ends the run, which has just saved this step, once every process has.

        Raises:
            Interrupted: always.
        """
        if not self._keep:
            raise Interrupted("interrupted; without a workdir nothing is kept")
        self._checkpointer.wait()
        processes.wait_for_all("interrupted")
        raise Interrupted(
            f"interrupted at step {step} of {self._num_steps}, after a checkpoint; {resume_line()}"
        )

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


def restore(work: Workdir, checkpointer: Checkpointer, method: Method[State, Info]) -> Saved | None:
    """Reads the newest checkpoint; None where there is none.

    In the main process for all, or in each its part.

    Raises:
        UserError: it is damaged, or the method cannot go on from it.
    """
    found = _read(checkpointer)
    if found is None:
        if processes.is_main() and work.metrics.exists():
            logger.warning("%s has a run without a checkpoint: it starts again.", work.path)
        return None
    arrays, meta = found
    if not isinstance(method, Spread):
        arrays = jax.tree.map(np.asarray, arrays)
    with work.checkpoint_errors():
        meta = checked_meta(meta)
        processes.from_main(lambda: work.check_belongs(work.checkpoints, meta["identity"]))
        changed = differences(meta["config"], method.config.to_dict())
        if changed:
            raise UserError(
                f"{work.checkpoints} has members of another configuration: {'; '.join(changed)}; "
                "restore these values or choose another --workdir"
            )
        arrays, counters = old.checkpoint(arrays, meta["counters"], work.path, is_resumed=True)
        check_resumable(method, meta["dataset"], counters, work)
    recall(meta["notes"])
    return Saved(arrays, counters, meta["sizes"], meta["clock"], said())


def _read(checkpointer: Checkpointer) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The newest checkpoint, for all processes."""
    if checkpointer.is_shared:
        return checkpointer.restore_latest()
    arrays: dict[str, Any] | None = None

    def read() -> Any:
        nonlocal arrays
        saved = checkpointer.restore_latest()
        if saved is None:
            return None
        arrays, meta = saved
        return meta

    meta = processes.from_main(read)
    return None if meta is None else (processes.arrays_from_main(arrays), meta)


def begin(method: Method[State, Info], work: Workdir, saved: Saved | None) -> tuple[State, Draws]:
    """The state to advance from, new or saved, and the draws that were kept before it.

    From here on the workdir says which run it holds.
    """
    rng_key = jax.random.key(method.config.seed)
    if saved is None:
        state = method.init(rng_key)
    else:
        with work.checkpoint_errors(), processes.losses_noticed():  # Else it were called damage.
            state = method.from_host(rng_key, saved.arrays, saved.counters)
        logger.info("Resuming %s at step %d of %d.", work.path, state.step, method.num_steps)
    processes.from_main(lambda: write_config(work, method))
    draws = Draws(work.draws, processes.from_main(work.identity))
    num_recorded = method.num_recorded(state) if isinstance(method, Recorded) else 0
    processes.from_main(lambda: draws.truncate(num_recorded))
    return state, draws


@contextlib.contextmanager
def missing_packages_named(workdir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within it, a configuration is checked that may be of a run which had packages.

    Raises:
        UserError: as the check does, with the packages that the run had and that are missing here.
    """
    try:
        yield
    except UserError as error:
        absent = []
        if workdir is not None:
            with contextlib.suppress(UserError):  # What else is wrong there comes later.
                absent = packages.missing(Workdir(workdir).packages())
        if not absent:
            raise
        raise UserError(f"{error}; {packages.remedy(absent)}") from None


def check_same_experiment(config: ml_collections.FrozenConfigDict, work: Workdir) -> None:
    """Refuses another experiment in an old workdir, before anything slow happens.

    Raises:
        UserError: what differs, and what to do.
    """
    before = work.read_config()
    work.check_packages()
    work.check_flags()
    changed = differences(before, config.to_dict()) if before is not None else []
    if changed:
        raise UserError(
            f"{work.path} holds a run with another configuration: {'; '.join(changed)}; "
            "restore these values or choose another --workdir"
        )


def check_resumable(
    method: Method[State, Info], then: Mapping[str, Any], counters: Mapping[str, int], work: Workdir
) -> None:
    """Refuses to go on with another experiment in an old workdir.

    Args:
        method: that is to go on.
        then: the description of the data that the run has learned.
        counters: of its checkpoint.
        work: of the run.

    Raises:
        UserError: what differs, and what to do.
    """
    now = describe(method)
    if now["fingerprint"] != then["fingerprint"]:
        raise UserError(
            f"{work.path} holds a run on other data than {now['name']} has now; "
            f"restore the data or choose another --workdir ({old.NOT_RESUMED})"
        )
    from ensemble.sources.features import check_same_backbone  # Where a run goes on alone.

    check_same_backbone(then, now, str(work.path))
    if now.get("teacher") != then.get("teacher"):
        raise UserError(
            f"{work.path} holds a run that has learned from another ensemble, or from none, than "
            "config.teacher says; restore that ensemble or choose another --workdir"
        )
    method.check_resumable(counters, str(work.path))
