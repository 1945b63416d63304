"""Streaming sums over the draws of many chains, on the devices.

The draws of a body of 8 steps are added in float32, the bodies' sums by compensated summation
(Kahan 1965), and what has gathered is put away in at most 8 segments of equal length, which double
when they are full. So the halves of a run are known at any time, whatever its length.
"""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

DRAWS_PER_BODY = 8
DRAWS_PER_SEGMENT = 64
"""At first."""
NUM_SEGMENTS = 8
Pair = tuple[jax.Array, jax.Array]


class Sums(NamedTuple):
    """Sums over the draws of each chain, of distances from the origin and of their squares.

    Attributes:
        pending: Two arrays [B, D, L] over the body of draws that is not yet whole.
        totals: Two arrays [B, D, L] over the whole bodies of the open segment.
        excess: What rounding has added to the totals.
    """

    pending: Pair
    totals: Pair
    excess: Pair


# On the devices.


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


def put_away(sums: Sums, closed: Any, place: jax.Array) -> tuple[Sums, Any]:
    """Moves the totals into `place` of the closed segments, two of [B, S, D, L].

    Where that is the last place, neighbours are added, and half of the places are free.
    """

    def merge(one: jax.Array) -> jax.Array:
        merged = one[:, 0::2] + one[:, 1::2]
        return jnp.concatenate([merged, jnp.zeros_like(merged)], axis=1)

    def put(one: jax.Array, total: jax.Array, extra: jax.Array) -> jax.Array:
        one = lax.dynamic_update_index_in_dim(one, total - extra, place, axis=1)
        return jnp.where(place == NUM_SEGMENTS - 1, merge(one), one)

    closed = jax.tree.map(put, closed, sums.totals, sums.excess)
    zeros = jax.tree.map(jnp.zeros_like, sums.totals)
    return sums._replace(totals=zeros, excess=zeros), closed


# On the host.


def segment_length(num_draws: int) -> int:
    """Draws of a closed segment after so many: it doubles whenever all places are taken."""
    length = DRAWS_PER_SEGMENT
    while num_draws // length >= NUM_SEGMENTS:
        length *= 2
    return length
