"""Streaming sums over the draws of many chains, on the devices.

The draws of a body of 8 steps are added in float32, and the bodies' sums by compensated summation
(Kahan 1965).
"""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

DRAWS_PER_BODY = 8
Pair = tuple[jax.Array, jax.Array]


class Sums(NamedTuple):
    """Sums over the draws of each chain, of distances from the origin and of their squares.

    Attributes:
        pending: Two arrays [B, D, L] over the body of draws that is not yet whole.
        totals: Two arrays [B, D, L] over the whole bodies.
        excess: What rounding has added to the totals.
    """

    pending: Pair
    totals: Pair
    excess: Pair


def add_draw(pending: Pair, origin: jax.Array, position: jax.Array) -> Pair:
    """Adds one draw [D, L] of every chain."""
    distance = position - origin[:, None]
    return pending[0] + distance, pending[1] + distance * distance


def finish_body(sums: Sums, is_whole: jax.Array) -> Sums:
    """Adds what is pending to the totals, where a body of draws is whole."""
    terms = jax.tree.map(operator.sub, sums.pending, sums.excess)
    totals = jax.tree.map(operator.add, sums.totals, terms)
    excess = jax.tree.map(lambda new, total, term: (new - total) - term, totals, sums.totals, terms)
    after = Sums(jax.tree.map(jnp.zeros_like, sums.pending), totals, excess)
    return jax.tree.map(lambda new, old: jnp.where(is_whole, new, old), after, sums)
