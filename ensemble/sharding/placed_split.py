"""A split on the devices."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ensemble import target_rows
from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA, named_sharding


class PlacedSplit(NamedTuple):
    """A split whose examples are spread over the shards; the mask is false for padding."""

    inputs: jax.Array
    targets: Any
    mask: jax.Array


def place_split(inputs: np.ndarray, targets: np.ndarray, mesh: Mesh) -> PlacedSplit:
    """Puts a split on the devices; the last example pads, for zeros may be no input."""
    num_places = transfer.padded_size(len(targets), mesh, DATA)

    def padded(tree: Any) -> Any:
        return jax.tree.map(lambda one: transfer.pad(np.asarray(one), num_places, fill=None), tree)

    rows = padded(target_rows.on_devices(targets))
    arrays = (padded(inputs), rows, np.arange(num_places) < len(targets))
    return PlacedSplit(*transfer.put(arrays, named_sharding(mesh, "example")))
