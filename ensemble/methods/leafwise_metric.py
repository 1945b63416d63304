"""A diagonal mass, leaf by leaf: positions that are spread over devices stay where they are.

BlackJAX's own metrics join all leaves to one vector, which gathers a sharded leaf on every device
in every draw. Here every leaf draws its own momenta and gives its own products, of which only sums
cross devices. The variances that make the mass are estimated leaf by leaf, too.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import (
    MassMatrixAdaptationState,
    WelfordAlgorithmState,
    welford_algorithm,
)
from blackjax.mcmc.metrics import Metric
from jax.flatten_util import ravel_pytree

_, _add_to_leaf, _finish_leaf = welford_algorithm(is_diagonal_matrix=True)


def leafwise_metric(mask: Any | None = None, inverse_mass: Any | None = None) -> Metric:
    """Makes the metric, for any kernel of BlackJAX that takes one as its inverse mass matrix.

    The momenta of leaf k come from `fold_in(rng_key, k)`, and each depends on its place from the
    start of the leaf alone: rows that pad the end change no other, so draws do not depend on the
    number of shards. BlackJAX's `hmc` gathers no leaf. Its `nuts` is right, but the criterion that
    ends its trajectories joins the leaves in every step: that gathers the momenta.

    Args:
        mask: of the tree of a position, a bool array a leaf, of the leaf's shape or a leading part
            of it; [] for all rows alike. Where it is false the momentum is zero: with a gradient
            of zero, as padding has, such rows never move and add nothing to the kinetic energy.
        inverse_mass: a tree of the shapes of a position; None: the identity.
    """

    def times(function: Callable[[jax.Array], jax.Array], element: Any) -> Any:
        if inverse_mass is None:
            return element
        return jax.tree.map(lambda inverse, leaf: function(inverse) * leaf, inverse_mass, element)

    def velocity(momentum: Any) -> Any:
        return times(lambda inverse: inverse, momentum)

    def split(momentum: Any) -> Any:
        """The leaves that the criterion of `nuts` has joined."""
        is_joined = isinstance(momentum, jax.Array) and not isinstance(inverse_mass, jax.Array)
        if inverse_mass is None or not is_joined:
            return momentum
        return ravel_pytree(inverse_mass)[1](momentum)

    def sample_momentum(rng_key: jax.Array, position: Any) -> Any:
        leaves, treedef = jax.tree.flatten(position)
        drawn = [
            jax.random.normal(jax.random.fold_in(rng_key, k), leaf.shape, leaf.dtype)
            for k, leaf in enumerate(leaves)
        ]
        momentum = times(jax.lax.rsqrt, jax.tree.unflatten(treedef, drawn))
        return momentum if mask is None else jax.tree.map(_keep, mask, momentum)

    def kinetic_energy(momentum: Any, position: Any = None) -> jax.Array:
        return 0.5 * _dot(momentum, velocity(momentum))

    def check_turning(
        momentum_left: Any,
        momentum_right: Any,
        momentum_sum: Any,
        position_left: Any = None,
        position_right: Any = None,
    ) -> jax.Array:
        left, right, total = map(split, (momentum_left, momentum_right, momentum_sum))
        # The ends count half: Betancourt (2017), "A conceptual introduction to HMC", A.4.2.
        rho = jax.tree.map(
            lambda total, left, right: total - (left + right) / 2, total, left, right
        )
        return (_dot(velocity(left), rho) <= 0) | (_dot(velocity(right), rho) <= 0)

    def scale(position: Any, element: Any, *, inv: bool, trans: bool) -> Any:
        return times(jnp.sqrt if inv else jax.lax.rsqrt, element)

    return Metric(sample_momentum, kinetic_energy, check_turning, scale)


def start(position: Any) -> MassMatrixAdaptationState:
    """The identity, as trees of the shapes of a position, and no draws.

    Args:
        position: of a chain.
    """
    ones, zeros = (jax.tree.map(like, position) for like in (jnp.ones_like, jnp.zeros_like))
    return MassMatrixAdaptationState(ones, WelfordAlgorithmState(zeros, zeros, 0))


def add(mass: MassMatrixAdaptationState, position: Any) -> MassMatrixAdaptationState:
    """Counts a draw.

    Args:
        mass: of `start`.
        position: of the draw.
    """
    mean, m2, count = mass.wc_state
    leaves = [
        _add_to_leaf(WelfordAlgorithmState(*one[:2], count), one[2])
        for one in zip(*map(jax.tree.leaves, (mean, m2, position)), strict=True)
    ]
    means, sums, _ = zip(*leaves, strict=True)
    treedef = jax.tree.structure(position)
    moments = (jax.tree.unflatten(treedef, one) for one in (means, sums))
    return mass._replace(wc_state=WelfordAlgorithmState(*moments, count + 1))


def finish(mass: MassMatrixAdaptationState) -> MassMatrixAdaptationState:
    """Ends a window: the inverse mass is the variances of its draws, regularised as Stan's are.

    Args:
        mass: of `add`.
    """
    mean, m2, count = mass.wc_state

    def regularised(mean: jax.Array, m2: jax.Array) -> jax.Array:
        variance, _, _ = _finish_leaf(WelfordAlgorithmState(mean, m2, count))
        return (count * variance + 5 * 1e-3) / (count + 5)

    return start(mean)._replace(inverse_mass_matrix=jax.tree.map(regularised, mean, m2))


def _keep(mask: jax.Array, leaf: jax.Array) -> jax.Array:
    """The leaf, zero where the mask is false."""
    mask = jnp.asarray(mask)
    return jnp.where(mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim)), leaf, 0)


def _dot(left: Any, right: Any) -> jax.Array:
    products = jax.tree.map(lambda one, other: jnp.sum(one * other), left, right)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))
