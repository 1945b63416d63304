"""A diagonal mass, leaf by leaf: positions that are spread over devices stay where they are.

BlackJAX's own metrics join all leaves to one vector, which gathers a sharded leaf on every device
in every draw. Here every leaf draws its own momenta and gives its own products, of which only sums
cross devices. The variances that make the mass are estimated leaf by leaf, too.
"""

from typing import Any

import jax
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import MassMatrixAdaptationState, WelfordAlgorithmState
from blackjax.mcmc.metrics import Metric, default_metric
from jax import random
from jax.flatten_util import ravel_pytree


def leafwise_metric(mask: Any | None = None, inverse_mass: Any | None = None) -> Metric:
    """Makes the metric, which BlackJAX's `hmc` and `nuts` take as their inverse mass matrix.

    The momenta of leaf k come from `fold_in(rng_key, k)`, and each depends on its place from the
    start of the leaf alone: rows that pad the end change no other, so draws do not depend on the
    number of shards. `hmc` gathers no leaf. `nuts` is right, but the criterion that ends its
    trajectories joins the leaves in every step: that gathers the momenta.

    Args:
        mask: Tree of a position, a bool array a leaf, of the leaf's shape or a leading part of it;
            [] for all rows alike. Where it is false the momentum is zero: with a gradient of zero,
            as padding has, such rows never move and add nothing to the kinetic energy.
        inverse_mass: Tree of the shapes of a position; None: the identity.
    """

    def sample_momentum(rng_key, position):
        leaves, treedef = jax.tree.flatten(position)
        drawn = [
            random.normal(random.fold_in(rng_key, k), leaf.shape, leaf.dtype)
            for k, leaf in enumerate(leaves)
        ]
        momentum = jax.tree.unflatten(treedef, drawn)
        if inverse_mass is not None:
            momentum = jax.tree.map(lambda v, p: jax.lax.rsqrt(v) * p, inverse_mass, momentum)
        if mask is None:
            return momentum
        return jax.tree.map(
            lambda m, p: jnp.where(jnp.expand_dims(m, range(jnp.ndim(m), p.ndim)), p, 0),
            mask,
            momentum,
        )

    def kinetic_energy(momentum, position=None):
        velocity = momentum
        if inverse_mass is not None:
            velocity = jax.tree.map(jnp.multiply, inverse_mass, momentum)
        products = jax.tree.map(lambda p, v: jnp.sum(p * v), momentum, velocity)
        return 0.5 * jnp.sum(jnp.stack(jax.tree.leaves(products)))

    def check_turning(*ends):
        joined = jnp.ones(1) if inverse_mass is None else ravel_pytree(inverse_mass)[0]
        return default_metric(joined).check_turning(*ends)

    scale: Any = None  # Neither sampler needs it.
    return Metric(sample_momentum, kinetic_energy, check_turning, scale)


def start(position) -> MassMatrixAdaptationState:
    """Returns the identity, as trees of the shapes of a position, and no draws."""
    zeros = jax.tree.map(jnp.zeros_like, position)
    ones = jax.tree.map(jnp.ones_like, position)
    return MassMatrixAdaptationState(ones, WelfordAlgorithmState(zeros, zeros, 0))


def add(mass: MassMatrixAdaptationState, position) -> MassMatrixAdaptationState:
    """Counts a draw, by Welford's algorithm.

    Args:
        mass: Result of `start`.
        position: Position of the draw.
    """
    before, m2, count = mass.wc_state
    mean = jax.tree.map(lambda x, old: old + (x - old) / (count + 1), position, before)
    m2 = jax.tree.map(lambda x, old, new, m: m + (x - old) * (x - new), position, before, mean, m2)
    return mass._replace(wc_state=WelfordAlgorithmState(mean, m2, count + 1))


def finish(mass: MassMatrixAdaptationState) -> MassMatrixAdaptationState:
    """Ends a window: the inverse mass is the variances of its draws, regularised as Stan's are.

    Args:
        mass: Result of `add`.
    """
    _, m2, count = mass.wc_state
    inverse = jax.tree.map(lambda m2: (count * (m2 / (count - 1)) + 5 * 1e-3) / (count + 5), m2)
    return start(m2)._replace(inverse_mass_matrix=inverse)
