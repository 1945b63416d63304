"""Several processes, one run: how they meet, and what they tell each other.

JAX's own runtime, `jax.distributed`, does the work. Every process runs the same program and calls
the same functions in the same order; process 0, the main one, alone reads checkpoints and writes.
In a run of one process everything here is trivial.
"""

import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ensemble.errors import InputError, ProcessLostError, StorageError, logger
from ensemble.pytrees import ByName

HEARTBEAT_SECONDS = 30
"""After so long without a sign of life of one process JAX aborts the others."""
_SHUTDOWN_SECONDS = 30
_LAST_SECONDS = 8  # What the others have to print a line and end, also on a busy machine.
_PATIENCE = 6  # Times the timeout where no step is under way.
_KEPT_VALUES = 1000  # No process is so far behind process 0, which waits for it in collectives.
_PREFIX = "ensemble/"
_POLL_SECONDS = 0.1

_progress_timeout = 600.0
_told = itertools.count()
_calls = 0  # At which processes may have to wait for each other; all make the same ones.
_step: int | None = None
_posted: list[int | None] = []
_moved = 0.0  # When it was posted.


def start(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    settings: ByName,
    initialization_timeout: float = 50,
    progress_timeout: float = _progress_timeout,
) -> None:
    """Makes this process one of several, if it is: before JAX starts, after `startup.configure`.

    On a TPU VM, under Slurm, Open MPI or Kubernetes JAX finds the others by itself.

    Args:
        coordinator_address: HOST:PORT of process 0; all three are given, or none.
        num_processes: P.
        process_id: 0..P-1.
        settings: flat configuration, which must be the same in all processes.
        initialization_timeout: seconds to wait for the others. JAX aborts the process after them.
        progress_timeout: seconds to wait for a process that is behind; see `fault`.

    Raises:
        InputError: a value is bad, or the processes differ in settings or numbers of devices.
    """
    global _progress_timeout
    _progress_timeout = progress_timeout
    found: tuple[Any, ...] | None = (coordinator_address, num_processes, process_id, None)
    if found == (None,) * 4:
        found = _detect(initialization_timeout)
    if found is None:
        return
    address, number, rank, local_device_ids = found
    is_place = re.fullmatch(r".+:0*[1-9]\d{0,4}", str(address))
    if not is_place or rank not in range(number or 0):
        raise InputError(
            f"--coordinator_address={address}, --num_processes={number} and --process_id={rank} "
            "must be HOST:PORT of process 0, such as 10.0.0.1:8476, a number P, and one from 0 to "
            "P - 1; give all three of them"
        )
    jax.distributed.initialize(
        address,
        number,
        rank,
        local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=max(int(initialization_timeout), 1),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # JAX's would take it, and tell nobody.
    if count() > 1:
        if not is_main():
            logger.setLevel("WARNING")
        # JAX's own exchanges need as many everywhere.
        check_same("numbers of devices", jax.local_device_count())
        check_same("settings", settings)


def _detect(initialization_timeout: float) -> tuple[Any, ...] | None:
    """Asks JAX for the cluster that this process is of; None where it is of none, or alone.

    JAX has no public function for it but `initialize` itself, which would begin with what it finds
    before the address is checked, the task's GPUs are put right and the shutdown is shortened.
    """
    from jax._src.clusters import ClusterEnv  # Private to JAX, so only where it is needed.

    try:
        address, number, process_id, devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, max(int(initialization_timeout), 1)
        )
    except Exception as error:
        raise InputError(
            f"JAX has found a cluster and cannot say which process this is ({error}); give "
            "--coordinator_address, --num_processes and --process_id"
        ) from None
    if None in (address, number, process_id) or number == 1:
        return None
    if "SLURM_GPUS_PER_TASK" in os.environ:  # The task sees its own GPUs alone, numbered from 0.
        devices = None  # JAX would take that of the task's number on the node: jax issue 28194.
    return address, number, process_id, devices


def count() -> int:
    """How many processes the run has."""
    return jax.process_count()


def is_main() -> bool:
    """Whether this is process 0, or the only one."""
    return jax.process_index() == 0


def devices(num_devices: int | None = None) -> tuple[jax.Device, ...]:
    """The devices of all processes, those of a process side by side.

    Args:
        num_devices: of each process; None takes all that it has.
    """
    found = sorted(jax.devices(), key=lambda device: device.process_index)
    return tuple(np.array(found, object).reshape(count(), -1)[:, :num_devices].flat)


def tree_from_main(tree: Any) -> Any:
    """Process 0's arrays of a tree that all have, which others may have rounded differently."""
    if count() == 1:
        return tree
    arrive()
    return jax.tree.map(jnp.asarray, multihost_utils.broadcast_one_to_all(tree))


def from_main(value: Callable[[], Any]) -> Any:
    """Calls a function on process 0 and tells all what it returns, or of which error it ends.

    Args:
        value: returns what JSON can hold.

    Raises:
        InputError: process 0 has raised it.
    """
    if count() == 1:
        return value()
    content: list[Any] = [None]
    if is_main():
        try:
            content = [value()]
        except InputError as error:
            content = [isinstance(error, StorageError), str(error)]
    found, *fault = tell(content)
    if fault:
        raise (StorageError if found else InputError)(*fault)
    return found


def tell(value: Any) -> Any:
    """Tells all processes what process 0 says, without waiting for a device.

    Args:
        value: what JSON can hold; of process 0 it is what counts.

    Raises:
        JaxRuntimeError: process 0 has ended, or says nothing.
    """
    if count() == 1:
        return value
    arrive()
    block, place = divmod(next(_told), _KEPT_VALUES)
    key = f"{_PREFIX}told/{block}/{place}"
    if is_main():
        text = json.dumps(value)
        client().key_value_set(key, text)
        if not place:
            client().key_value_delete(f"{_PREFIX}told/{block - 2}/")
    else:
        text = _awaited(key)
    return json.loads(text)


def check_same(what: str, value: Any) -> None:
    """Refuses what is not the same in all processes.

    Args:
        what: Plural noun, for the message.
        value: What JSON can hold.

    Raises:
        InputError: It is not; in all processes.
    """
    if count() == 1:
        return
    arrive()
    folder = f"{_PREFIX}same/{next(_told)}/"
    text = json.dumps(value, sort_keys=True)
    client().key_value_set(f"{folder}{jax.process_index()}", text)
    each = [_awaited(f"{folder}{k}") for k in range(count())]
    others = [str(k) for k, one in enumerate(each) if one != each[0]]
    if others:
        raise InputError(
            f"the {what} of process {', '.join(others)} are not those of process 0; start all "
            "processes with the same arguments, on the same data, devices and shared --workdir"
        )


def _awaited(key: str) -> str:
    """What another process has posted, or is about to."""
    return str(client().blocking_key_value_get(key, int(1000 * _PATIENCE * _progress_timeout)))


def post(key: str, value: str = "1") -> None:
    """Says something to all processes that look for it."""
    if count() > 1:
        with suppress(jax.errors.JaxRuntimeError):  # None is left.
            client().key_value_set(f"{_PREFIX}{key}", value, allow_overwrite=True)


def posted(key: str) -> str:
    """What a process has posted; empty: nothing, or there is but one process."""
    if count() > 1:
        with suppress(jax.errors.JaxRuntimeError):  # Not yet, or none is left.
            return str(client().key_value_try_get(f"{_PREFIX}{key}"))
    return ""


def client() -> Any:
    """JAX's connection to the coordinator."""
    from jax._src.distributed import global_state  # Private to JAX, which has no other way.

    return global_state.client


# Ends.


def at_step(step: int | None) -> None:
    """Notes the step that this process begins; None: it takes none for now."""
    global _step
    _step = step


def arrive() -> None:
    """Notes that this process is where it may have to wait for the others."""
    global _calls
    _calls += 1


def fault() -> str:
    """Why this process need not wait for the others any longer, in a line; empty: it may.

    Processes post how often they have come to a place where they wait for each other, and the step
    that they are at. One that is alive but stuck, such as in a user's function, stays behind.
    Without a step, such as while data are read, the others wait for it six times as long.
    """
    global _posted, _moved
    if count() == 1:
        return ""
    own = jax.process_index()
    try:
        if ended := _ended():
            return f"process {ended[0]} has ended, whose log says why; {_RESUME}"
    except jax.errors.JaxRuntimeError:  # The coordinator has ended.
        return ""
    here = [_calls, own, _step]
    if here != _posted:
        _posted = here
        _moved = time.monotonic()
        post(f"at/{own}", json.dumps(here))
    waited = time.monotonic() - _moved
    if waited < _progress_timeout:
        return ""
    places = [posted(f"at/{k}") or f"[0, {k}, null]" for k in range(count())]
    calls, slowest, step = min(map(json.loads, places))
    limit = _progress_timeout * (_PATIENCE if step is None else 1)
    if calls >= _calls or waited < limit:  # Others may wait for this one.
        return ""
    at = "outside of its steps" if step is None else f"at step {step}"
    return (
        f"process {slowest} is stuck {at}, and process {own} of {count()} has waited {waited:.0f} "
        f"seconds, over --progress_timeout={_progress_timeout:g}; {_RESUME}"
    )


_RESUME = "the same command, for all, goes on from the last checkpoint"


def end(status: int) -> None:
    """Ends this process of several at once: an orderly end would wait for the others."""
    if jax.distributed.is_initialized():  # Asking for their number would start JAX.
        sys.stdout.flush()
        post(f"ended/{jax.process_index()}")
        deadline = time.monotonic() + _LAST_SECONDS
        # JAX aborts the others when process 0 ends: they may have a line to print.
        while is_main() and len(_ended()) < count() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        os._exit(status)


def _ended() -> list[str]:
    """Processes that have ended, or are about to."""
    return [key.rpartition("/")[2] for key, _ in client().key_value_dir_get(f"{_PREFIX}ended/")]


@contextmanager
def losses_noticed() -> Iterator[None]:
    """Says in a line that another process has ended, which JAX notices when they next meet.

    Raises:
        ProcessLostError: it has.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if count() == 1 or not _is_loss(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise ProcessLostError(
            f"process {jax.process_index()} of {count()} has lost another one, whose log says why "
            f"({reason}); {_RESUME}"
        ) from None


# On GPU: ncclGetErrorString of ncclRemoteError and ncclSystemError, after XLA's "NCCL operation ...
# failed: ". Seen in jax-ml/jax issues 19307 and 22747.
_LOSS = re.compile(
    "Gloo|Connection reset|Connection closed|Socket closed|remote error|heartbeat"
    "|oordination service|UNAVAILABLE|DEADLINE_EXCEEDED"
    "|remote process exited|unhandled system error"
)


def _is_loss(error: Exception) -> bool:
    """Whether an error is JAX's for a process that does not answer; on CPU a ValueError of Gloo."""
    text = str(error)
    of_jax = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in text
    is_own = "/dev/shm" in text  # This process's shared memory is too small: a system error, too.
    return of_jax and not is_own and _LOSS.search(text) is not None


def wait_for_all(name: str) -> None:
    """Waits until all processes are here."""
    if count() > 1:
        arrive()
        multihost_utils.sync_global_devices(name)
