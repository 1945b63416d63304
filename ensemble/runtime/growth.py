"""An ensemble that gets more members: they train in a folder of their own, and then join.

Member k depends on the seed and on k alone. So newcomers train until they have taken as many steps
as the others, and then all of them are one checkpoint.
"""

import logging
from typing import Any

import jax
import numpy as np

from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.run.progress import Clock
from ensemble.runtime.loading import PARAMETERS
from ensemble.runtime.run import Run
from ensemble.sharding import processes
from ensemble.storage.files import write_file
from ensemble.storage.manifest import damaged
from ensemble.storage.metrics_log import as_lines, read_metrics
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")

_OF_THE_ENSEMBLE = ("/ensemble/", "/diversity/")
"""Groups of tags of a run's metrics that are of all its members together."""


def enlarge(run: Run) -> None:
    """Trains the members that a run's checkpoint lacks, and joins them to it.

    Interrupted, they are resumed. The run then has a checkpoint of all members.

    Args:
        run: Run of all members, which has read the checkpoint.

    Raises:
        InputError: The run has more members than are asked for, or is getting others.
    """
    work = run.where.work
    counters = run.meta["counters"]
    size = len(run.numbers)
    there = counters["num_members"]
    if size < there:
        raise InputError(
            f"config.ensemble_size={size}, but {work.path} has {there} members; keep that number "
            "or more, or choose another --workdir"
        )
    if size > there:
        where = run.where.of_new_members(there, size - 1)
        with where.checkpointer:
            processes.from_main(lambda: _check_newcomers(work, where.work))
            newcomers = Run(run.method, range(there, size), where, run.clock, others_live=True)
            before = newcomers.restore()
            if before and before["counters"]["num_members"] != size - there:
                last = there + before["counters"]["num_members"]
                raise InputError(
                    f"config.ensemble_size={size}, but {work.path} is still growing from {there} "
                    f"to {last}; let it finish with {last} first"
                )
            processes.from_main(lambda: _begin(run, where.work))
            newcomers.clock = Clock(run.clock.started, **(before or run.meta)["clock"])
            logger.info("Members %d to %d train alone until they are level.", there, size - 1)
            newcomers.begin()
            newcomers.go(until=counters["step"])
            with work.checkpoint_errors():
                _join(run, newcomers)
        run.checkpointer.save(counters["step"], run.arrays, run.meta)
        run.checkpointer.wait()
    # Nobody is to join any more.
    processes.from_main(lambda: work.new_members.exists() and work.new_members.rmtree())


def _check_newcomers(work: Workdir, inner: Workdir) -> None:
    """Refuses members that were to join another run."""
    if inner.config.exists() and inner.identity() != work.identity():
        raise damaged(inner.path)


def _begin(run: Run, inner: Workdir) -> None:
    """Says in the workdir that the ensemble is to be larger than it is."""
    work = run.where.work
    work.write_config(run.config)
    work.manifest.remove(work.report)
    inner.path.mkdir(exist_ok=True)
    inner.write_config(run.config, work)


def _join(run: Run, newcomers: Run) -> None:
    """Joins newcomers to the checkpoint that a run has read, and their files to its own."""
    old = run.arrays
    new = newcomers.saved_arrays()
    there = run.meta["counters"]["num_members"]
    new |= newcomers.devices.fetch_members(
        {name: new[name] for name in ("members", PARAMETERS) if name in new}
    )
    arrays: dict[str, Any] = {"shared": new["shared"]} if "shared" in new else {}
    if not _same(old.get("shared"), arrays.get("shared")):
        raise InputError(
            f"members that join the run in {run.where.work.path} have started from something else "
            "than the others, as config.init_from has changed; put that back, or choose another "
            "--workdir"
        )
    for name in old.keys() - {"rows", "shared"}:
        arrays[name] = jax.tree.map(
            lambda leaf, other: np.concatenate([np.asarray(leaf)[:there], other]),
            *(old[name], new[name]),
        )
    rows = {}
    for name in ("scalars", "kept"):
        if all(name in one.get("rows", {}) for one in (old, new)):
            rows[name] = jax.tree.map(
                lambda *leaves: np.concatenate(leaves, axis=1), old["rows"][name], new["rows"][name]
            )
    arrays |= {"rows": rows} if rows else {}
    processes.from_main(lambda: _join_files(run, newcomers))
    counters = {**run.meta["counters"], "num_members": len(run.numbers)}
    run.arrays = arrays
    run.clock = newcomers.clock
    run.meta = {**run.meta, "clock": run.clock.state(), "counters": counters}


def _same(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal up to rounding."""
    leaves = jax.tree.leaves(one)
    others = jax.tree.leaves(other)
    pairs = zip(leaves, others, strict=False)
    return len(leaves) == len(others) and all(
        np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True) for a, b in pairs
    )


def _join_files(run: Run, newcomers: Run) -> None:
    """Joins the metrics of newcomers, without scores of the ensemble, and what they have kept."""
    work = run.where.work
    inner = newcomers.where.work
    members = [newcomers.numbers[0], newcomers.numbers[-1]]
    # A kill may have left theirs here before they joined.
    lines = [one for one in read_metrics(work.metrics) if one.get("members") != members]
    for one in read_metrics(inner.metrics):
        own = {k: v for k, v in one.items() if not any(group in k for group in _OF_THE_ENSEMBLE)}
        lines.append({**own, "members": members})
    write_file(work.metrics, as_lines(lines))
    if run.algorithm.keep is not None:
        Draws(work.draws).joined(Draws(inner.draws))
