"""Streaming sums over the draws of many chains, on the devices.

The draws of a body of 8 steps are added in float32, the bodies' sums by compensated summation
(Kahan 1965), and what has gathered is put away in at most 8 segments of equal length, which double
when they are full. So the halves of a run are known at any time, whatever its length.
"""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DRAWS_PER_BODY = 8
DRAWS_PER_COUNT = 16
"""One draw of so many goes into the histogram: the next ones would say nearly the same."""
DRAWS_PER_SEGMENT = 64
"""At first."""
NUM_SEGMENTS = 8
NUM_BINS = 512
_BINS_WITHIN = 8.0  # Standard deviations on either side.
_CARRY_BITS = 24  # Of a bin's count that are not carried: few enough for int32, whatever the run.


Pair = tuple[jax.Array, jax.Array]


class Grid(NamedTuple):
    """The place where draws are expected.

    Attributes:
        origin: Point [D] near the mean, or float32 would lose small distances.
        bin_width: Width [D] of the bins of the histogram, whose middle is the origin.
    """

    origin: Any
    bin_width: Any

    @classmethod
    def around(cls, points: np.ndarray) -> "Grid":
        """The grid for draws that look like these [N, D]."""
        points = points.astype(np.float64)
        bin_width = 2 * _BINS_WITHIN / NUM_BINS * spread_of(points)
        return cls(points.mean(axis=0).astype(np.float32), bin_width.astype(np.float32))


def spread_of(points: np.ndarray) -> np.ndarray:
    """Standard deviations [D] of points [N, D]; 1 if a coordinate does not vary."""
    spread = points.std(axis=0)
    return np.where(spread > 0, spread, 1)


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


def count_draw(
    counts: jax.Array, grid: Grid, position: jax.Array, is_counted: jax.Array
) -> jax.Array:
    """Adds one draw of every chain to a histogram.

    Args:
        counts: [D, K + 2] int32; the first and the last bin have no end.
        grid: of the sums.
        position: [D, L].
        is_counted: [L], false for padding.
    """
    place = (position - grid.origin[:, None]) / grid.bin_width[:, None] + NUM_BINS // 2
    index = jnp.clip(jnp.floor(place), -1, NUM_BINS).astype(jnp.int32) + 1
    index = jnp.where(is_counted, index, NUM_BINS + 2)  # Out of bounds: dropped.
    return counts.at[jnp.arange(len(position))[:, None], index].add(1, mode="drop")


def carry_counts(counts: jax.Array, carried: jax.Array) -> Pair:
    """Leaves counts below 2^24, so that those of the next `max_span` draws have room."""
    return counts & (2**_CARRY_BITS - 1), carried + (counts >> _CARRY_BITS)


def max_span(num_chains: int) -> int:
    """Draws of a device's chains, even, that int32 counts between two carries."""
    most = (2**31 - 2**_CARRY_BITS) // num_chains - 1  # One more where a span begins amid a period.
    return max(most * DRAWS_PER_COUNT, 2)


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


def join_counts(counts: np.ndarray, carried: np.ndarray) -> np.ndarray:
    """The histogram [D, K + 2] over all devices, int64."""
    return (counts + (carried.astype(np.int64) << _CARRY_BITS)).sum(axis=0)


def split_counts(joined: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `join_counts`, of one device: `(counts, carried)`, int32."""
    low = joined & (2**_CARRY_BITS - 1)
    return low.astype(np.int32), (joined >> _CARRY_BITS).astype(np.int32)
