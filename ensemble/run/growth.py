"""An ensemble that gets more members: they train in a folder of their own, and then join."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from ensemble.draws.store import Draws
from ensemble.method import Growing, Info, Method, State
from ensemble.run.opened import Open
from ensemble.run.progress import Clock
from ensemble.run.resume import Saved, restore, save_arrays, write_config
from ensemble.run.writer import Writer
from ensemble.sharding import processes
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.metrics_log import parse_record
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")

_OF_THE_ENSEMBLE = ("ensemble", "diversity")
"""Groups of tags of a run's metrics that are of all its members together."""


def enlarge(
    method: Method[State, Info],
    saved: Saved,
    where: Open,
    checkpointer: Checkpointer,
    clock: Clock,
    advance: Callable[
        [Method[State, Info], Open, Checkpointer, Saved | None, Clock, bool], tuple[State, Draws]
    ],
) -> tuple[Saved, Clock]:
    """Trains the members that a checkpoint lacks, and leaves one that has them all.

    They are a run like any other, in the workdir `newcomers`, until they have taken as many steps
    as the others. Interrupted, it is resumed there.

    Args:
        method: of the whole ensemble.
        saved: the checkpoint.
        where: the ensemble is.
        checkpointer: of the ensemble.
        clock: of the ensemble.
        advance: `(method, where, checkpointer, saved, clock, others_live) -> (state, draws)`.

    Returns:
        The new checkpoint and clock, or the old ones if no member is lacking.
    """
    work = where.work
    new_members = method.new_members(saved.counters) if isinstance(method, Growing) else None
    if new_members is None or not isinstance(method, Growing):
        processes.from_main(lambda: _remove(work))  # Nobody is to join any more.
        return saved, clock
    first, last = new_members.indices[0], new_members.indices[-1]
    inner = work.of_new_members(first, last)
    with contextlib.ExitStack() as stack:
        inner_checkpointer = stack.enter_context(
            Checkpointer(inner.checkpoints, method.config.keep_checkpoints, checkpointer.is_shared)
        )
        processes.from_main(lambda: _check_new_members(work, inner))
        before = restore(inner, inner_checkpointer, new_members)
        processes.from_main(lambda: _begin(work, inner, method))
        clock = Clock(clock.started, **(saved if before is None else before).clock)
        logger.info("Members %d to %d train alone until they are level.", first, last)
        state, _ = advance(
            new_members, where._replace(work=inner), inner_checkpointer, before, clock, True
        )
        arrays = new_members.to_host(state)[0]
    with work.checkpoint_errors():
        joined = Saved(
            *method.joined(saved.arrays, saved.counters, arrays),
            saved.sizes,
            clock.state(),
            saved.notes,
        )

    def write_metrics() -> dict[str, int]:
        writer = Writer(work, saved.sizes)
        for line in inner.metrics.read_bytes().splitlines():
            writer.record(_of_members(parse_record(line) or {}, first, last))
        sizes = writer.sizes()
        writer.close()
        return sizes

    joined = joined._replace(sizes=processes.from_main(write_metrics))

    def join() -> None:
        save_arrays(work, checkpointer, method, joined)
        checkpointer.wait()

    if checkpointer.is_shared:
        join()
    else:
        processes.from_main(join)
    processes.from_main(lambda: _remove(work))
    return joined, Clock(time.monotonic(), **joined.clock)


def _begin(work: Workdir, inner: Workdir, method: Method[State, Info]) -> None:
    """Says in the workdir that the ensemble is to be larger than it is."""
    write_config(work, method)
    work.report.unlink(missing_ok=True)
    inner.path.mkdir(exist_ok=True)
    write_config(inner, method, outer=work)


def _check_new_members(work: Workdir, inner: Workdir) -> None:
    """Refuses members that were to join another run."""
    if inner.config.exists():
        work.check_belongs(inner.path, inner.identity())


def _remove(work: Workdir) -> None:
    if work.new_members.exists():
        work.new_members.rmtree()


def _of_members(record: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    """A line of the new members' metrics for those of the ensemble, of which they are a part."""
    kept = {
        key: value
        for key, value in record.items()
        if not any(f"/{group}/" in key for group in _OF_THE_ENSEMBLE)
    }
    return {**kept, "members": [first, last]}
