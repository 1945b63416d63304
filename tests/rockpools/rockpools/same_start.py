"""SGD of members that start from the same parameters and differ by their batches alone."""

import jax
import jax.numpy as jnp

from ensemble.methods.members.sgd import SGD
from ensemble.sharding import transfer


def copies(leaf):
    """The first member's values for every member [M, ...], where they were."""
    return transfer.put(jnp.broadcast_to(leaf[:1], leaf.shape), leaf.sharding)


class SameStart(SGD):
    def init(self, rng_key):
        state = super().init(rng_key)
        params = jax.tree.map(copies, state.members.params)
        return state.replace(members=state.members.replace(params=params))
