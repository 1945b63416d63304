"""What the hosts of several processes tell each other, without waiting for a device.

JAX's coordinator passes it on. In a run of one process everything here is trivial.
"""

import contextlib
from typing import Any

import jax

from ensemble.sharding import processes

_POLL_SECONDS = 0.5
_READ_EVERY = 50  # Calls after which each process says that it has read what it was told.
_TOLD, _READ = "ensemble/told/", "ensemble/read/"
_told = _deleted = 0


def tell(value: int) -> int:
    """Tells all processes what process 0 says; all call it in the same order.

    Args:
        value: of process 0 it is what counts.

    Raises:
        JaxRuntimeError: process 0 has ended.
    """
    global _told
    if processes.count() == 1:
        return value
    _told += 1
    is_due = _told % _READ_EVERY == 0
    if processes.is_main():
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
    if len(read) < processes.count() - 1:
        return
    for number in range(_deleted + 1, min(read) + 1):
        client().key_value_delete(f"{_TOLD}{number}")
    _deleted = min(read)


def _wait_for(key: str) -> int:
    """What process 0 says, once it does."""
    while True:
        try:
            return int(client().blocking_key_value_get(key, int(1000 * _POLL_SECONDS)))
        except jax.errors.JaxRuntimeError as error:
            # Process 0 may be busy for long, such as with pictures.
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if is_posted(processes.ENDED):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: process 0 has ended")


def post(key: str) -> None:
    """Says something once, to all processes that look for it."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Another one has, or none is left.
        client().key_value_set(key, "1")


def is_posted(key: str) -> bool:
    """Whether a process has said it; False where there is but one."""
    if processes.count() == 1:
        return False
    try:
        return bool(client().key_value_try_get(key))
    except jax.errors.JaxRuntimeError:  # Not yet, or the coordinator has ended.
        return False


def client() -> Any:
    """JAX's connection to the coordinator."""
    from jax._src.distributed import global_state  # Private to JAX, which has no other way.

    return global_state.client
