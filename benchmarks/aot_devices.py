"""Accelerators that are not here, as compilers are told of them.

Names are of a kind and a topology: `v5e:2x4` is eight chips of TPU v5e, `h100:8` eight H100s of one
machine. Each kind needs its own plug-in: `pip install -r requirements-tpu.txt`, or
`requirements-cuda.txt`, in an environment of its own; neither needs a driver.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_TPU = {
    # Else libtpu asks the machine which TPU it has, and lets but one process in.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_GPU = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}  # Which needs the device.
GHZ = {"v5e": 1.5, "v5p": 1.75, "v6e": 1.75}
"""Clocks that are assumed for what the compiler estimates in cycles."""

_H100: Mapping[str, Any] = {
    "gpu_device_info": {
        # CUDA C++ Programming Guide, "Compute Capabilities", 9.0.
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_block_optin": 227 * 2**10,
        "shared_memory_per_core": 228 * 2**10,
        "threads_per_core_limit": 2048,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "cuda_compute_capability": {"major": 9},
        # NVIDIA H100 Tensor Core GPU Architecture, the SXM5 card.
        "core_count": 132,
        "fpus_per_core": 128,
        "memory_bandwidth": 3_352_320_000_000,
        "l2_cache_size": 50 * 2**20,
        "clock_rate_ghz": 1.98,
        "device_memory_size": 80 * 2**30,
    },
    "platform_name": "CUDA",
    "dnn_version_info": {"major": 9, "minor": 10, "patch": 0},
    "runtime_version": {"major": 13, "minor": 0, "patch": 0},
    "device_description_str": "NVIDIA H100 80GB HBM3",
}
"""One H100, as OpenXLA's GpuTargetConfigProto describes a device."""


def environment(topology: str) -> dict[str, str]:
    """What a process that compiles for a topology must be started with."""
    own = _GPU if _kind(topology) == "h100" else _TPU
    return {"JAX_PLATFORMS": "cpu", **own}


def devices_of(topology: str) -> Sequence[Any]:
    """The devices of a topology, in a process of that `environment`.

    Args:
        topology: such as `v5e:2x4`, `v6e:16x16` or `h100:8`.

    Raises:
        Exception: JAX's own, where the plug-in is not installed or knows no such topology.
    """
    # JAX starts in a process that has the environment.
    from jax.experimental import topologies

    if _kind(topology) != "h100":
        return topologies.get_topology_desc(topology, platform="tpu").devices
    number = int(topology.partition(":")[2])
    described = topologies.get_topology_desc(
        platform="cuda", target_config=as_text(_H100), topology=f"1x1x{number}"
    )
    return described.devices


def seconds(topology: str, cycles: int) -> float | None:
    """What cycles take by an assumed clock; None where none is assumed, or nothing estimated."""
    clock = GHZ.get(_kind(topology))
    return cycles / clock / 1e9 if clock and cycles else None


def as_text(message: Mapping[str, Any]) -> str:
    """A message of protocol buffers in their text format."""
    return " ".join(
        f"{name} {{ {as_text(value)} }}"
        if isinstance(value, Mapping)
        else f"{name}: {json.dumps(value)}"
        for name, value in message.items()
    )


def _kind(topology: str) -> str:
    return topology.partition(":")[0]
