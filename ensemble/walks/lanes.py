"""Chains lie side by side in the lanes of vectors, in blocks, over devices."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ensemble.sharding import transfer
from ensemble.sharding.mesh import ENSEMBLE, named_sharding

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
        num_devices = mesh.shape[ENSEMBLE]
        of_device = -(-num_chains // num_devices)
        most = max(max_lanes // num_dims, _MULTIPLE)
        blocks = -(-of_device // most)
        lanes = -(-of_device // (blocks * _MULTIPLE)) * _MULTIPLE
        return cls(mesh, num_chains, blocks * num_devices, lanes)

    def place(self, tree: Any) -> Any:
        """Puts leaves [C, ...] on the devices, [B, ..., L]."""

        def place(leaf: np.ndarray) -> jax.Array:
            chains = transfer.pad(leaf, self.num_blocks * self.num_lanes, fill=None)
            blocks = chains.reshape(self.num_blocks, self.num_lanes, *leaf.shape[1:])
            return transfer.put(np.moveaxis(blocks, 1, -1), named_sharding(self.mesh, "chain"))

        return jax.tree.map(place, tree)

    def fetch(self, leaf: jax.Array) -> np.ndarray:
        """The inverse of `place`, of one leaf."""
        blocks = np.moveaxis(transfer.fetch(leaf), -1, 1)
        return transfer.strip(blocks.reshape(-1, *blocks.shape[2:]), self.num_chains)
