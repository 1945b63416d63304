"""An ensemble that gets more members: they train in a folder of their own, and then join.

Member k depends on the seed and on k alone. So newcomers train until they have taken as many steps
as the others, and then all of them are one checkpoint.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.run.opened import NUM_KEPT
from ensemble.run.progress import Clock
from ensemble.runtime.loading import PARAMETERS
from ensemble.runtime.run import Run
from ensemble.sharding import processes
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.files import write_file
from ensemble.storage.manifest import damaged
from ensemble.storage.metrics_log import as_lines, read_metrics
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")

_OF_THE_ENSEMBLE = ("ensemble", "diversity")
"""Groups of tags of a run's metrics that are of all its members together."""


def enlarge(run: Run, make: Callable[..., Run]) -> Run:
    """Trains the members that a checkpoint lacks, and leaves one that has them all.

    Interrupted, they are resumed.

    Args:
        run: Of all members, which has read the checkpoint.
        make: Makes a run of some members: `(numbers, where, checkpointer, clock, others_live)`.

    Returns:
        The run, which has read the new checkpoint; as it was if no member is lacking.

    Raises:
        InputError: The run has more members than are asked for, or is getting others.
    """
    where, counters = run.where, run.meta["counters"]
    work, size, there = where.work, len(run.numbers), counters["num_members"]
    _check(work, size, there)
    if size == there:
        processes.from_main(lambda: _remove(work))  # Nobody is to join any more.
        return run
    inner = work.of_new_members(there, size - 1)
    with contextlib.ExitStack() as stack:
        checkpointer = stack.enter_context(Checkpointer(inner.checkpoints, NUM_KEPT))
        processes.from_main(lambda: _check_newcomers(work, inner))
        newcomers = make(
            range(there, size), where._replace(work=inner), checkpointer, run.clock, True
        )
        before = newcomers.restore()
        if before is not None and before["counters"]["num_members"] != size - there:
            last = there + before["counters"]["num_members"]
            raise InputError(
                f"config.ensemble_size={size}, but {work.path} is still growing from {there} to "
                f"{last}; let it finish with {last} first"
            )
        processes.from_main(lambda: _begin(work, inner, run))
        seconds = run.meta if before is None else before
        newcomers.clock = clock = Clock(run.clock.started, **seconds["clock"])
        logger.info("Members %d to %d train alone until they are level.", there, size - 1)
        newcomers.begin()
        newcomers.go(until=counters["step"])
        with work.checkpoint_errors():
            new = newcomers.saved_arrays()
            new |= newcomers.devices.fetch_members(
                {name: new[name] for name in ("members", PARAMETERS) if name in new}
            )
            arrays = _joined(run.arrays, there, new)
        if not _same(run.arrays.get("shared"), arrays.get("shared")):
            raise InputError(
                f"members that join the run in {work.path} have started from something else than "
                "the others, as config.init_from has changed; put that back, or choose another "
                "--workdir"
            )

    def join_files() -> None:
        members = [there, size - 1]  # A kill may have left theirs here before they joined.
        lines = [one for one in read_metrics(work.metrics) if one.get("members") != members]
        lines += [{**_of_members(one), "members": members} for one in read_metrics(inner.metrics)]
        write_file(work.metrics, as_lines(lines))
        if run.algorithm.keep is not None:
            Draws(work.draws).joined(Draws(inner.draws))

    processes.from_main(join_files)
    meta = {**run.meta, "clock": clock.state()}
    meta["counters"] = {**counters, "num_members": size}
    run.checkpointer.save(counters["step"], arrays, meta)
    run.checkpointer.wait()
    processes.from_main(lambda: _remove(work))
    run.arrays, run.meta, run.clock = arrays, meta, clock
    return run


def _check(work: Workdir, size: int, there: int) -> None:
    if size < there:
        raise InputError(
            f"config.ensemble_size={size}, but {work.path} has {there} members; keep that number "
            "or more, or choose another --workdir"
        )


def _joined(old: Any, there: int, new: Any) -> dict[str, Any]:
    """The arrays of a checkpoint of so many members with those of newcomers."""
    old_rows, new_rows = old.get("rows", {}), new.get("rows", {})
    rows = {}
    for name in ("scalars", "kept"):
        if name in old_rows and name in new_rows:
            rows[name] = jax.tree.map(
                lambda *leaves: np.concatenate(leaves, axis=1), old_rows[name], new_rows[name]
            )
    kept = [k for k in old if k not in ("rows", "shared")]
    found = jax.tree.map(
        lambda leaf, other: np.concatenate([np.asarray(leaf)[:there], other]),
        *({k: one[k] for k in kept} for one in (old, new)),
    )
    found |= {"rows": rows} if rows else {}
    return found | ({"shared": new["shared"]} if "shared" in new else {})


def _same(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal up to rounding."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    pairs = zip(leaves, others, strict=False)
    return len(leaves) == len(others) and all(
        np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True) for a, b in pairs
    )


def _begin(work: Workdir, inner: Workdir, run: Run) -> None:
    """Says in the workdir that the ensemble is to be larger than it is."""
    work.write_config(run.config)
    work.manifest.remove(work.report)
    inner.path.mkdir(exist_ok=True)
    inner.write_config(run.config, work)


def _check_newcomers(work: Workdir, inner: Workdir) -> None:
    """Refuses members that were to join another run."""
    if inner.config.exists() and inner.identity() != work.identity():
        raise damaged(inner.path)


def _remove(work: Workdir) -> None:
    if work.new_members.exists():
        work.new_members.rmtree()


def _of_members(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the newcomers' metrics without scores of the ensemble that they are a part of."""
    return {
        key: value
        for key, value in record.items()
        if not any(f"/{group}/" in key for group in _OF_THE_ENSEMBLE)
    }
