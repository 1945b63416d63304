"""An ensemble that gets more members: they train in a folder of their own, and then join.

Member k depends on the seed and on k alone. So new members train until they have taken as many
steps as the others, and then all of them are one checkpoint.
"""

import logging

import jax
import numpy as np

from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.runtime.run import Run
from ensemble.sharding import processes
from ensemble.storage.files import make_folder, write_file
from ensemble.storage.manifest import damaged
from ensemble.storage.metrics_log import as_lines, read_metrics
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")


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
            processes.from_main(lambda: _check_new_members(work, where.work))
            new = Run(run.method, range(there, size), where, run.clock, others_live=True)
            new.restore()
            if new.meta and (last := there + new.meta["counters"]["num_members"]) != size:
                raise InputError(
                    f"config.ensemble_size={size}, but {work.path} is still growing from {there} "
                    f"to {last}; let it finish with {last} first"
                )
            processes.from_main(lambda: _begin(run, where.work))
            logger.info("Members %d to %d train alone until they are level.", there, size - 1)
            new.begin(run.arrays.get("shared"))
            new.go(until=counters["step"])
            with work.checkpoint_errors():
                _join(run, new)
        run.where.checkpointer.save(counters["step"], run.arrays, run.meta)
        run.where.checkpointer.wait()
    # Nobody is to join any more.
    processes.from_main(lambda: work.new_members.exists() and work.new_members.rmtree())


def _check_new_members(work: Workdir, inner: Workdir) -> None:
    """Refuses members that were to join another run."""
    if inner.config.exists() and inner.identity() != work.identity():
        raise damaged(inner.path)


def _begin(run: Run, inner: Workdir) -> None:
    """Says in the workdir that the ensemble is to be larger than it is."""
    work = run.where.work
    work.write_config(run.config)
    work.manifest.remove(work.report)
    make_folder(inner.path)
    make_folder(work.events)
    inner.write_config(run.config, work)


def _join(run: Run, new: Run) -> None:
    """Joins new members to the checkpoint that a run has read, and their files to its own."""
    counters = run.meta["counters"]
    arrays = new.saved_arrays()
    before = run.arrays.get("rows", {})
    rows = arrays.pop("rows", {})
    rows = {name: one for name, one in rows.items() if name in before and name != "of_all"}
    alone = {"shared": arrays.pop("shared")} if "shared" in arrays else {}
    there = counters["num_members"]
    joined = jax.tree.map(  # All processes fetch them in one order.
        lambda own, old: np.concatenate([np.asarray(old)[:there], own]),
        new.devices.fetch_members(arrays),
        {name: run.arrays[name] for name in arrays},
    )
    if rows:
        joined["rows"] = jax.tree.map(
            lambda own, old: np.concatenate([old, own], axis=1),
            rows,
            {name: before[name] for name in rows},
        )
    processes.from_main(lambda: _join_files(run, new))
    run.arrays = {**alone, **joined}
    run.clock = new.clock
    counters = {**counters, "num_members": len(run.numbers)}
    run.meta = {**run.meta, "clock": run.clock.state(), "counters": counters}


def _join_files(run: Run, new: Run) -> None:
    """Joins the metrics of new members, without scores of the ensemble, and what they have kept."""
    work, inner = run.where.work, new.where.work
    members = [new.numbers[0], new.numbers[-1]]
    # A kill may have left theirs here before they joined.
    lines = [one for one in read_metrics(work.metrics) if one.get("members") != members]
    for one in read_metrics(inner.metrics):
        own = {k: v for k, v in one.items() if "/ensemble/" not in k and "/diversity/" not in k}
        lines.append({**own, "members": members})
    write_file(work.metrics, as_lines(lines))
    if run.algorithm.keep is not None:
        Draws(work.draws).joined(Draws(inner.draws))
