"""Refuses, before anything is computed, what this machine's memory cannot hold."""

from collections.abc import Sequence

import jax

from ensemble.errors import UserError
from ensemble.storage.npz import memory_bytes


def check_memory(num_bytes: int, what: str, remedy: str) -> None:
    """Refuses what is larger than the memory: the system would end the process without a word.

    Args:
        num_bytes: that it takes at least.
        what: takes them, for the message.
        remedy: what to lower.

    Raises:
        UserError: as said.
    """
    there_are = memory_bytes()
    if num_bytes > there_are:
        raise UserError(
            f"{what} would take {num_bytes / 2**30:.1f} GiB, over the {there_are / 2**30:.1f} of "
            f"this machine; lower {remedy}"
        )


def device_bytes(devices: Sequence[jax.Device]) -> int:
    """The memory of one device; of CPU devices, their part of the machine's.

    Args:
        devices: of the run, of which this process has some.
    """
    local = [one for one in devices if one.process_index == jax.process_index()]
    stats = local[0].memory_stats() or {}
    return int(stats.get("bytes_limit", memory_bytes() // len(local)))
