"""The end of a run that is interrupted, and what refuses another experiment in its workdir."""

from typing import NoReturn

import ml_collections

from ensemble.config import differences
from ensemble.errors import InputError, Interrupted
from ensemble.sharding import processes
from ensemble.sharding.signals import Stop, resume_line
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.workdir import Workdir


def interrupt(where: str, stop: Stop, checkpointer: Checkpointer) -> NoReturn:
    """Ends a run that has just saved, once every process has.

    Args:
        where: it is.
        stop: of the run.
        checkpointer: of the run.

    Raises:
        Interrupted: always.
    """
    checkpointer.wait()
    processes.wait_for_all("interrupted")
    if not stop.is_kept:
        raise Interrupted(stop.last_line())
    raise Interrupted(f"interrupted at {where}, after a checkpoint; {resume_line()}")


def check_same_experiment(config: ml_collections.FrozenConfigDict, work: Workdir) -> None:
    """Refuses another experiment in an old workdir, before anything slow happens.

    Raises:
        InputError: what differs, and what to do.
    """
    before = work.read_config()
    work.check_flags()
    changed = differences(before, config.to_dict()) if before is not None else []
    if changed:
        raise InputError(
            f"{work.path} holds a run with another configuration: {'; '.join(changed)}; "
            "restore these values or choose another --workdir"
        )
