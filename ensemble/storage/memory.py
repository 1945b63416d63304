"""The memory of this machine: what it cannot hold is refused before anything is computed."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import jax

from ensemble.errors import InputError

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def memory_bytes() -> int:
    """The memory of this machine, or what of it this process may take for itself.

    Linux's control groups limit it, as containers and Slurm set them.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):
        inner = _CGROUPS / _OWN_CGROUP.read_text().rpartition("0::")[2].strip().lstrip("/")
        for folder in (inner, *inner.parents):
            with suppress(OSError, ValueError):  # None there, or `max`.
                found.append(int((folder / "memory.max").read_text()))
    return min(found)


def max_bytes() -> int:
    """What the arrays of one file may take: scoring predictions takes some ten times as much."""
    return memory_bytes() // 16


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
        InputError: as said.
    """
    limit = memory_bytes()
    where = "this machine"
    own = own_bytes(devices) if devices else None
    if own is None:
        num_bytes += on_devices
    elif on_devices * jax.process_count() > own * len(devices):
        num_bytes = on_devices * jax.process_count()
        limit = own * len(devices)
        where = "the devices"
    if num_bytes > limit:
        raise InputError(
            f"{what} would take {num_bytes / 2**30:.1f} GiB, over the {limit / 2**30:.1f} of "
            f"{where}; lower {remedy}"
        )


def device_bytes(devices: Sequence[jax.Device]) -> int:
    """The memory of one device; of CPU devices, their part of the machine's.

    Args:
        devices: of the run, of which this process has some.
    """
    own = own_bytes(devices)
    return memory_bytes() // sum(map(_is_own, devices)) if own is None else own


def own_bytes(devices: Sequence[jax.Device]) -> int | None:
    """The memory of one device, where it has its own and says how much; else None."""
    return (next(filter(_is_own, devices)).memory_stats() or {}).get("bytes_limit")


def _is_own(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()
