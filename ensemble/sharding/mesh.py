"""The one mesh of a posterior: chains lie over one axis, examples over the other."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import AxisType, Mesh

from ensemble.errors import UserError

CHAINS, DATA = "ensemble", "data"
"""Axes of the mesh: chains lie over one, examples over the other."""


class PlacedSplit(NamedTuple):
    """A split on the devices, spread over the axis `data`; the mask is false for padding."""

    inputs: jax.Array
    targets: jax.Array
    mask: jax.Array


def create_mesh(num_chain_groups: int, num_shards: int, devices: Sequence[jax.Device]) -> Mesh:
    """Lays devices out for chains and examples.

    Args:
        num_chain_groups: devices over which chains are spread.
        num_shards: devices over which the examples of each chain are spread.
        devices: at least the product of the two.

    Raises:
        UserError: there are fewer devices.
    """
    if len(devices) < num_chain_groups * num_shards:
        raise UserError(
            f"{num_chain_groups} groups of chains x {num_shards} shards need "
            f"{num_chain_groups * num_shards} devices, there are {len(devices)}; use fewer"
        )
    return jax.make_mesh(
        (num_chain_groups, num_shards),
        (CHAINS, DATA),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[: num_chain_groups * num_shards],
    )
