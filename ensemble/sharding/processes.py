"""Several processes, one run: how they meet, and what they tell each other.

JAX's own runtime, `jax.distributed`, does the work. Every process runs the same program and calls
the same functions in the same order; process 0, the main one, alone reads checkpoints and writes.
In a run of one process everything here is trivial.
"""

import collections
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import empty_node, flatten_dict, unflatten_dict
from jax.experimental import multihost_utils

from ensemble.errors import PeerLost, StoreAway, UserError

logger = logging.getLogger("ensemble")

HEARTBEAT_SECONDS = 45
"""After so long JAX ends the others in C++; `heartbeats` is to notice before."""
_SHUTDOWN_SECONDS = 30
_MAX_JOIN_SECONDS = 604_800  # Timers of the system end somewhere, and nobody waits for so long.
_LAST_SECONDS = 4  # What the others have to say a line and end, also on a busy machine.
ENDED = "ensemble/ended"
"""The word of process 0, when it ends, to those that wait for one."""
_PIECE_BYTES = 2**26  # Of what is exchanged whole: devices hold no more of it at a time.
_POLL_SECONDS = 0.5
_READ_EVERY = 50  # Calls after which each process says that it has read what it was told.
_TOLD, _READ = "ensemble/told/", "ensemble/read/"
_told = _deleted = 0


def start(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    settings: Mapping[str, Any],
    join_seconds: float = 50,
    packages: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Makes this process one of several, if it is: before JAX starts, after `startup.configure`.

    On a TPU VM, under Slurm, Open MPI or Kubernetes JAX finds the others by itself.

    Args:
        coordinator_address: HOST:PORT of process 0; all three are given, or none.
        num_processes: P.
        process_id: 0..P-1.
        settings: flat configuration, which must be the same in all processes.
        join_seconds: how long to wait for the others.
        packages: versions of installed packages, by name, which must be the same too.

    Raises:
        UserError: the processes do not agree, have different numbers of devices, or are to be
            waited for without end.
        PeerLost: a process is missing.
    """
    if not 0 < join_seconds <= _MAX_JOIN_SECONDS:  # NaN is refused, too.
        raise UserError(
            f"--join_seconds={join_seconds:g} must be above 0 and at most {_MAX_JOIN_SECONDS:,}, "
            "which is a week; leave it out to wait for 50"
        )
    given = {
        "coordinator_address": coordinator_address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise UserError(
            f"--{missing[0]} is missing; a process of several needs --coordinator_address, "
            "--num_processes and --process_id"
        )
    local_device_ids = None
    if missing:
        found = _detect(join_seconds)
        if found is None:
            return
        coordinator_address, num_processes, process_id, local_device_ids = found
    assert coordinator_address is not None
    assert num_processes is not None
    assert process_id is not None
    from ensemble.sharding.rendezvous import Peer, meet  # Of several processes alone.

    own = Peer(process_id, num_processes, dict(settings), packages)
    meet(coordinator_address, own, join_seconds)
    jax.distributed.initialize(
        coordinator_address,
        num_processes,
        process_id,
        local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=max(int(join_seconds), 1),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # JAX's would take it, and tell nobody.
    if count() > 1:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_add_rank)
        if not is_main():
            logging.getLogger("ensemble").setLevel(logging.WARNING)
        _check_devices()


def _detect(join_seconds: float) -> tuple[str, int, int, Any] | None:
    """Asks JAX for the cluster that this process is of; None where it is of none, or alone.

    JAX has no public function for it but `initialize` itself, which would not let the processes
    meet first.
    """
    from jax._src.clusters import ClusterEnv  # Private to JAX, so only where it is needed.

    try:
        with warnings.catch_warnings():  # That a package for Kubernetes is not there.
            warnings.simplefilter("ignore")
            address, number, process_id, devices = ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, max(int(join_seconds), 1)
            )
    except Exception as error:
        raise UserError(
            f"JAX has found a cluster and cannot say which process this is ({error}); give "
            "--coordinator_address, --num_processes and --process_id"
        ) from None
    if address is None or number is None or process_id is None or number == 1:
        return None
    if "SLURM_GPUS_PER_TASK" in os.environ:  # The task sees its own GPUs alone, numbered from 0.
        devices = None  # JAX would take that of the task's number on the node: jax issue 28194.
    return address, number, process_id, devices


def _check_devices() -> None:
    """Refuses processes of different numbers of devices: JAX's own exchanges need as many."""
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        raise UserError(
            f"the processes have {', '.join(str(counts[k]) for k in sorted(counts))} devices, must "
            "have the same number; set JAX_NUM_CPU_DEVICES, or show each as many accelerators"
        )


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
    by_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    return tuple(one for k in sorted(by_process) for one in by_process[k][:num_devices])


# Arrays.


def join_rows(rows: np.ndarray) -> np.ndarray:
    """Joins arrays [N, ...] of all processes, of the same N, to [P * N, ...] on each."""
    if count() == 1:
        return rows
    flat = rows.reshape(-1)
    whole = np.empty((count(), flat.size), rows.dtype)
    length = max(_PIECE_BYTES // (count() * rows.itemsize), 1)
    for start in range(0, flat.size, length):
        piece = slice(start, start + length)
        whole[:, piece] = multihost_utils.process_allgather(flat[piece])
    return whole.reshape(-1, *rows.shape[1:])


# What process 0 knows.


def from_main(value: Callable[[], Any]) -> Any:
    """Calls a function on process 0 and tells all what it returns, or of which error it ends.

    Args:
        value: returns what JSON can hold.

    Raises:
        UserError: process 0 has raised it.
    """
    if count() == 1:
        return value()
    content: dict[str, Any] = {}
    if is_main():
        try:
            content = {"value": value()}
        except UserError as error:
            content = {"error": str(error), "is_away": isinstance(error, StoreAway)}
    content = json.loads(_bytes_from_main(json.dumps(content).encode()))
    if "error" in content:
        raise (StoreAway if content["is_away"] else UserError)(content["error"])
    return content["value"]


def _kind(dtype: np.dtype) -> str:
    """The name of a dtype by which another process finds it: NumPy has no text for bfloat16."""
    return str(dtype.name if dtype.isbuiltin == 2 else dtype.str)


def arrays_from_main(tree: Mapping[str, Any] | None) -> dict[str, Any]:
    """Gives all processes a nested dict of host arrays that process 0 has."""
    if count() == 1:
        assert tree is not None
        return dict(tree)
    flat = {} if tree is None else flatten_dict(tree, sep="/", keep_empty_nodes=True)
    empty = {name: leaf for name, leaf in flat.items() if leaf is None or leaf is empty_node}
    arrays = {name: np.asarray(leaf) for name, leaf in flat.items() if name not in empty}
    kinds = from_main(
        lambda: {
            "none": [name for name, leaf in empty.items() if leaf is None],
            "empty": [name for name, leaf in empty.items() if leaf is empty_node],
            "arrays": {name: [_kind(leaf.dtype), leaf.shape] for name, leaf in arrays.items()},
        }
    )
    found: dict[str, Any] = dict.fromkeys(kinds["none"]) | dict.fromkeys(kinds["empty"], empty_node)
    for name, (dtype, shape) in kinds["arrays"].items():
        content = _bytes_from_main(arrays[name].tobytes() if is_main() else b"")
        found[name] = np.frombuffer(content, np.dtype(dtype)).reshape(shape)
    return unflatten_dict(found, sep="/")


def tree_from_main(tree: Any) -> Any:
    """Process 0's arrays of a tree that all have computed: others may have rounded differently."""
    if count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    found = arrays_from_main({str(k): np.asarray(leaf) for k, leaf in enumerate(leaves)})
    return jax.tree.unflatten(structure, [jnp.asarray(found[str(k)]) for k in range(len(leaves))])


def _bytes_from_main(content: bytes) -> bytes:
    """Process 0's bytes, on all: their number first, then piece by piece."""
    halves = np.array(divmod(len(content), 2**32), np.uint32)
    upper, lower = (int(half) for half in multihost_utils.broadcast_one_to_all(halves))
    whole = np.zeros(upper * 2**32 + lower, np.uint8)
    if is_main():
        whole[:] = np.frombuffer(content, np.uint8)
    for start in range(0, len(whole), _PIECE_BYTES):
        piece = whole[start : start + _PIECE_BYTES]
        piece[:] = multihost_utils.broadcast_one_to_all(piece)
    return whole.tobytes()


def check_same(what: str, value: Any) -> None:
    """Refuses what is not the same in all processes.

    Args:
        what: it is, for the message.
        value: what JSON can hold.

    Raises:
        UserError: it is not; in all processes.
    """
    if count() == 1:
        return
    number = np.uint32(zlib.crc32(json.dumps(value, sort_keys=True).encode()))
    numbers = multihost_utils.process_allgather(number)
    others = np.flatnonzero(numbers != numbers[0]).tolist()
    if others:
        raise UserError(
            f"the {what} of process {', '.join(map(str, others))} are not those of process 0; "
            "start all processes with the same arguments, on the same data"
        )


# What hosts tell each other without waiting for a device: JAX's coordinator passes it on.


def tell(value: int) -> int:
    """Tells all processes what process 0 says; all call it in the same order.

    Args:
        value: of process 0 it is what counts.

    Raises:
        JaxRuntimeError: process 0 has ended.
    """
    global _told
    if count() == 1:
        return value
    _told += 1
    is_due = _told % _READ_EVERY == 0
    if is_main():
        client().key_value_set(f"{_TOLD}{_told}", str(value))
        if is_due:
            _delete_read()
        return value
    value = _wait_for(f"{_TOLD}{_told}")
    if is_due:
        client().key_value_set(f"{_READ}{jax.process_index()}", str(_told), allow_overwrite=True)
    return value


def _delete_read() -> None:
    """Deletes what all have read: none is waited for, however far it is behind."""
    global _deleted
    read = [int(number) for _, number in client().key_value_dir_get(_READ)]
    if len(read) < count() - 1:
        return
    for number in range(_deleted + 1, min(read) + 1):
        client().key_value_delete(f"{_TOLD}{number}")
    _deleted = min(read)


def _wait_for(key: str) -> int:
    """Waits for a word of process 0, and returns it."""
    while True:
        try:
            return int(client().blocking_key_value_get(key, int(1000 * _POLL_SECONDS)))
        except jax.errors.JaxRuntimeError as error:
            # Process 0 may be busy for long, such as with pictures.
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if is_posted(ENDED):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: process 0 has ended")


def post(key: str) -> None:
    """Says something once, to all processes that look for it."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Another one has, or none is left.
        client().key_value_set(key, "1")


def is_posted(key: str) -> bool:
    """Whether a process has said it; False where there is but one."""
    if count() == 1:
        return False
    try:
        return bool(client().key_value_try_get(key))
    except jax.errors.JaxRuntimeError:  # Not yet, or the coordinator has ended.
        return False


def client() -> Any:
    """JAX's connection to the coordinator."""
    from jax._src.distributed import global_state  # Private to JAX, which has no other way.

    return global_state.client


# Ends.


def end(status: int) -> None:
    """Ends this process of several at once: an orderly end would wait for the others."""
    if jax.distributed.is_initialized():  # Asking for their number would start JAX.
        sys.stdout.flush()
        if is_main():  # Whose end JAX takes for the others' end: they may have a line to say.
            post(ENDED)
            _hang_up()
            time.sleep(_LAST_SECONDS)
        os._exit(status)


def _hang_up() -> None:
    """Shuts down the connections at which the others wait for this process: they notice now.

    On CPU, where these are Gloo's. JAX's coordinator goes on, for its end aborts them. Without
    /proc they notice when this process has ended.
    """
    from jax._src.distributed import global_state  # As ClusterEnv.

    coordinator_port = int(str(global_state.coordinator_address).rpartition(":")[2])
    with contextlib.suppress(OSError):
        for name in set(os.listdir("/proc/self/fd")) - {"0", "1", "2"}:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if coordinator_port not in (one.getsockname()[1], one.getpeername()[1]):
                    one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def losses_noticed() -> Iterator[None]:
    """Says in a line that another process has ended, which JAX notices when they next meet.

    Raises:
        PeerLost: it has.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if count() == 1 or not _is_loss(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise PeerLost(
            f"process {jax.process_index()} of {count()} has lost another one, whose log says why "
            f"({reason}); the same command, for all, goes on from the last checkpoint"
        ) from None


_LOSSES = (
    "Gloo", "Connection reset", "Connection closed", "Socket closed", "remote error", "heartbeat",
    "oordination service", "UNAVAILABLE", "DEADLINE_EXCEEDED",
    # On GPU: ncclGetErrorString of ncclRemoteError and ncclSystemError, after XLA's "NCCL operation
    # ... failed: ". Seen in jax-ml/jax issues 19307 and 22747.
    "remote process exited", "unhandled system error",
)  # fmt: skip
_NO_LOSS = "/dev/shm"
"""In NCCL's last warning: this process's shared memory is too small, also a system error."""


def _is_loss(error: Exception) -> bool:
    """Whether an error is JAX's for a process that does not answer; on CPU a ValueError of Gloo."""
    text = str(error)
    of_jax = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in text
    return of_jax and _NO_LOSS not in text and any(sign in text for sign in _LOSSES)


def wait_for_all(name: str) -> None:
    """Waits until all processes are here."""
    if count() > 1:
        multihost_utils.sync_global_devices(name)


def _add_rank(record: Any) -> bool:
    rank = f"[{jax.process_index()}/{jax.process_count()}] "
    if not str(record.msg).startswith(rank):  # Another handler has added it.
        record.msg = f"{rank}{record.msg}"
    return True
