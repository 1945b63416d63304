"""Where chains lie: side by side in the lanes of vectors, in blocks, over devices."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ensemble.sharding import processes
from ensemble.sharding.mesh import CHAINS

_MULTIPLE = 16  # Floats of a vector: no chain is left to scalar code.


class Lanes(NamedTuple):
    """A layout of C chains; the last one pads.

    Attributes:
        mesh: of the devices, over whose axis of chains blocks lie.
        num_chains: C.
        num_blocks: B, on all devices.
        num_lanes: L, chains of a block.
    """

    mesh: Mesh
    num_chains: int
    num_blocks: int
    num_lanes: int

    @classmethod
    def create(cls, mesh: Mesh, num_chains: int, num_dims: int, max_lanes: int) -> "Lanes":
        """Lays chains out in as few blocks as `max_lanes` numbers of one dimension allow."""
        num_devices = mesh.shape[CHAINS]
        of_device = -(-num_chains // num_devices)
        most = max(max_lanes // num_dims, _MULTIPLE)
        blocks = -(-of_device // most)
        lanes = -(-of_device // (blocks * _MULTIPLE)) * _MULTIPLE
        return cls(mesh, num_chains, blocks * num_devices, lanes)

    def place(self, tree: Any) -> Any:
        """Puts leaves [C, ...] on the devices, [B, ..., L]."""
        index = np.minimum(np.arange(self.num_blocks * self.num_lanes), self.num_chains - 1)
        sharding = NamedSharding(self.mesh, PartitionSpec(CHAINS))

        def place(leaf: np.ndarray) -> jax.Array:
            blocks = leaf[index].reshape(self.num_blocks, self.num_lanes, *leaf.shape[1:])
            return processes.put(np.moveaxis(blocks, 1, -1), sharding)

        return jax.tree.map(place, tree)

    def fetch(self, leaf: jax.Array) -> np.ndarray:
        """The inverse of `place`, of one leaf."""
        rows = np.moveaxis(processes.fetch(leaf), -1, 1)
        return rows.reshape(-1, *rows.shape[2:])[: self.num_chains]
