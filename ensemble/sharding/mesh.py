"""The one mesh: members or chains by examples by the parameters of a member."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ensemble.errors import InputError

ENSEMBLE, DATA, MODEL = "ensemble", "data", "model"
"""Axes of the mesh."""

RULES = {
    "member": ENSEMBLE,
    "chain": ENSEMBLE,
    "example": DATA,
    "row": DATA,  # Of a table of data whose parameters lie beside it, a row's beside the row.
}
"""Over which axis of the mesh the things that an axis of an array counts are spread."""


def create_mesh(
    num_chain_groups: int, num_shards: int, devices: Sequence[jax.Device], num_parts: int = 1
) -> Mesh:
    """Lays devices out for members, examples and the parameters of a member.

    Args:
        num_chain_groups: devices over which members, or chains, are spread.
        num_shards: neighbouring devices over which the examples of each member are spread.
        devices: at least the product of the numbers.
        num_parts: neighbouring devices over which the arrays of each member are spread.

    Raises:
        InputError: there are fewer devices, or a group would lie in several slices of TPUs.
    """
    shape = (num_chain_groups, num_shards, num_parts)
    if len(devices) < math.prod(shape):
        raise InputError(
            f"{num_chain_groups} groups of chains x {num_shards} shards need "
            f"{math.prod(shape)} devices, there are {len(devices)}; use fewer"
        )
    used = devices[: math.prod(shape)]
    # In their order: `jax.make_mesh` refuses a part of a TPU, and machines without a fast network.
    grid = np.array(used, dtype=object).reshape(shape)
    _check_slices(grid)
    return Mesh(grid, (ENSEMBLE, DATA, MODEL), axis_types=(AxisType.Auto,) * 3)


def _check_slices(grid: np.ndarray) -> None:
    """Refuses groups [G, ...] of devices that only the network of a data centre joins.

    GPUs have a `slice_index` too, of their hosts, whose network is made for it.
    """
    for devices in grid.reshape(len(grid), -1):
        slices = {getattr(device, "slice_index", 0) for device in devices}
        if len(slices) > 1 and devices[0].platform == "tpu":
            raise InputError(
                f"each member or chain would lie over {len(devices)} TPUs of {len(slices)} slices, "
                "which must be of one: use as many members or chains as there are slices or a "
                "multiple of it, or one slice (nothing was tried on several)"
            )


def spec(*names: str | None) -> PartitionSpec:
    """How an array lies on the mesh.

    Args:
        *names: what its first axes count, keys of `RULES`; None and further axes are not spread.
    """
    return PartitionSpec(*[name and RULES[name] for name in names])


def by_rows(sharding: NamedSharding, num_axes: int = 2) -> Format:
    """Says where an array of so many axes lies, and that each of its rows is in one piece.

    TPUs else choose what takes the least, such as columns of 128 rows, and a program that would
    have rows begins with a copy of all.
    """
    return Format(Layout(tuple(range(num_axes))), sharding)


def named_sharding(mesh: Mesh, *names: str | None) -> NamedSharding:
    """Says where an array lies on the devices of a mesh; `names` as those of `spec`."""
    return NamedSharding(mesh, spec(*names))
