"""Refuses, before anything is computed, what this machine's memory cannot hold."""

from collections.abc import Sequence

import jax

from ensemble.errors import UserError
from ensemble.storage.npz import memory_bytes


def check_memory(
    num_bytes: int,
    what: str,
    remedy: str,
    on_devices: int = 0,
    devices: Sequence[jax.Device] = (),
) -> None:
    """Refuses what is larger than the memory: the system would end the process without a word.

    Args:
        num_bytes: that the host takes at least.
        what: takes them, for the message.
        remedy: what to lower.
        on_devices: bytes that the devices of this process together take at least.
        devices: of the run, of which this process has some.

    Raises:
        UserError: as said.
    """
    of_each = None
    if devices:
        of_each, local = own_bytes(devices), _local(devices)
    if of_each is None:
        num_bytes += on_devices
    elif on_devices > of_each * len(local):
        raise _too_large(what, on_devices, of_each * len(local), "the devices here", remedy)
    there_are = memory_bytes()
    if num_bytes > there_are:
        raise _too_large(what, num_bytes, there_are, "this machine", remedy)


def _too_large(what: str, num_bytes: int, there_are: int, where: str, remedy: str) -> UserError:
    return UserError(
        f"{what} would take {num_bytes / 2**30:.1f} GiB, over the {there_are / 2**30:.1f} of "
        f"{where}; lower {remedy}"
    )


def device_bytes(devices: Sequence[jax.Device]) -> int:
    """The memory of one device; of CPU devices, their part of the machine's.

    Args:
        devices: of the run, of which this process has some.
    """
    own = own_bytes(devices)
    return memory_bytes() // len(_local(devices)) if own is None else own


def own_bytes(devices: Sequence[jax.Device]) -> int | None:
    """The memory of one device, where it has its own and says how much; else None."""
    limit = (_local(devices)[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def _local(devices: Sequence[jax.Device]) -> list[jax.Device]:
    return [one for one in devices if one.process_index == jax.process_index()]
