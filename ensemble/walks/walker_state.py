"""Everything that the next steps of a walker need."""

import jax
from flax import struct

from ensemble.walks.block_kernel import Chains
from ensemble.walks.moments import DRAWS_PER_SEGMENT, Grid, Sums


class WalkerState(struct.PyTreeNode):
    """Everything that the next step needs; its size does not depend on the number of samples.

    Attributes:
        rng_key: of the run; no step changes it.
        factor: of the moves: [], [D], or a lower triangle [D, D].
        chains: on the devices.
        grid: where the draws are expected.
        sums: over the draws since they began.
        closed: two of [B, S, D, L], the sums of closed segments.
        step: steps of each chain so far, those of the warm-up too.
        first: the step at which the sums began.
        segment_length: draws of a closed segment.
        num_segments: how many are closed.
    """

    rng_key: jax.Array
    factor: jax.Array
    chains: Chains
    grid: Grid
    sums: Sums
    closed: tuple[jax.Array, jax.Array]
    step: int = struct.field(pytree_node=False)
    first: int = struct.field(pytree_node=False)
    segment_length: int = struct.field(pytree_node=False, default=DRAWS_PER_SEGMENT)
    num_segments: int = struct.field(pytree_node=False, default=0)

    @property
    def num_draws(self) -> int:
        """Draws of each chain that the sums are over."""
        return self.step - self.first
