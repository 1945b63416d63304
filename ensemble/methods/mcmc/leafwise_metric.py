"""The identity mass, leaf by leaf: positions that are spread over devices stay where they are.

BlackJAX's own metrics join all leaves to one vector, which gathers a sharded leaf on every device
in every draw. Here every leaf draws its own momenta and gives its own products, of which only sums
cross devices.
"""

from typing import Any

import jax
import jax.numpy as jnp
from blackjax.mcmc.metrics import Metric


def leafwise_metric(mask: Any | None = None) -> Metric:
    """Makes the metric, for any kernel of BlackJAX that takes one as its inverse mass matrix.

    The momenta of leaf k come from `fold_in(rng_key, k)`, and each depends on its place from the
    start of the leaf alone: rows that pad the end change no other, so draws do not depend on the
    number of shards. BlackJAX's `hmc` gathers no leaf. Its `nuts` is right, but the criterion that
    ends its trajectories joins the leaves in every step: that gathers the momenta.

    Args:
        mask: of the tree of a position, a bool array a leaf, of the leaf's shape or a leading part
            of it; [] for all rows alike. Where it is false the momentum is zero: with a gradient
            of zero, as padding has, such rows never move and add nothing to the kinetic energy.
    """

    def sample_momentum(rng_key: jax.Array, position: Any) -> Any:
        leaves, treedef = jax.tree.flatten(position)
        drawn = [
            jax.random.normal(jax.random.fold_in(rng_key, k), leaf.shape, leaf.dtype)
            for k, leaf in enumerate(leaves)
        ]
        momentum = jax.tree.unflatten(treedef, drawn)
        return momentum if mask is None else jax.tree.map(_keep, mask, momentum)

    def kinetic_energy(momentum: Any, position: Any = None) -> jax.Array:
        return 0.5 * _dot(momentum, momentum)

    def check_turning(
        momentum_left: Any,
        momentum_right: Any,
        momentum_sum: Any,
        position_left: Any = None,
        position_right: Any = None,
    ) -> jax.Array:
        # The ends count half: Betancourt (2017), "A conceptual introduction to HMC", A.4.2.
        rho = jax.tree.map(
            lambda total, left, right: total - (left + right) / 2,
            momentum_sum,
            momentum_left,
            momentum_right,
        )
        return (_dot(momentum_left, rho) <= 0) | (_dot(momentum_right, rho) <= 0)

    def scale(position: Any, element: Any, *, inv: bool, trans: bool) -> Any:
        return element

    return Metric(sample_momentum, kinetic_energy, check_turning, scale)


def _keep(mask: jax.Array, leaf: jax.Array) -> jax.Array:
    """The leaf, zero where the mask is false."""
    mask = jnp.asarray(mask)
    return jnp.where(mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim)), leaf, 0)


def _dot(left: Any, right: Any) -> jax.Array:
    products = jax.tree.map(lambda one, other: jnp.sum(one * other), left, right)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))
