"""Steps of the random walk, and sums over its draws: pure functions of chains and step numbers.

The random numbers are a function of (key, chain, step), by Threefry with all of its 20 rounds
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), so that neither the number of
devices, nor the blocks in which chains are moved, nor the chunks of steps change a draw. A call
gives 64 bits: for a pair of steps, one for each dimension makes two normal moves (Box and Muller),
and one makes the two uniforms of acceptance, so that no bit is made in vain.

The draws of a body of 8 steps are added in float32, and the bodies' sums by compensated summation
(Kahan 1965). At the ends of segments of equal length sums and positions are marked, of at most 8
segments, which double when they are full. So the halves of a run, and some draws of it, are known
at any time, whatever its length.

The tests of `walker.py` have the same in a few lines, which the fast way is compared with.
"""

import math
import operator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ensemble.methods.threefry import threefry
from ensemble.pytrees import ByName
from ensemble.random_walk.densities import LogDensityFn, fast_log2

DRAWS_PER_BODY = 8
DRAWS_PER_SEGMENT = 64
"""At first."""
NUM_SEGMENTS = 8
Pair = tuple[Array, Array]


# Sums.


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


def add_draw(pending: Pair, origin: Array, position: Array) -> Pair:
    """Adds one draw [D, L] of every chain."""
    distance = position - origin[:, None]
    return pending[0] + distance, pending[1] + distance * distance


def finish_body(sums: Sums, is_whole: Array) -> Sums:
    """Adds what is pending to the totals, where a body of draws is whole."""
    terms = jax.tree.map(operator.sub, sums.pending, sums.excess)
    totals = jax.tree.map(operator.add, sums.totals, terms)
    excess = jax.tree.map(lambda new, total, term: (new - total) - term, totals, sums.totals, terms)
    after = Sums(jax.tree.map(jnp.zeros_like, sums.pending), totals, excess)
    return jax.tree.map(lambda new, old: jnp.where(is_whole, new, old), after, sums)


def mark(marks: Any, sums: Sums, position: Array, place: Array) -> Any:
    """Puts sums and positions at the end of a segment into a place of the marks.

    If that is the last place, every other mark stays, and half of the places are free.

    Args:
        marks: Three arrays [B, S, D, L]: sums of distances, of their squares, and positions.
        sums: Sums so far; no draws are pending.
        position: Positions [B, D, L].
        place: Number of the place, below S.
    """

    def put(one: Array, value: Array) -> Array:
        one = lax.dynamic_update_index_in_dim(one, value, place, axis=1)
        every_other = jnp.concatenate([one[:, 1::2]] * 2, axis=1)
        return jnp.where(place == NUM_SEGMENTS - 1, every_other, one)

    totals = jax.tree.map(operator.sub, sums.totals, sums.excess)
    return jax.tree.map(put, marks, (*totals, position))


def segment_length(num_draws: int) -> int:
    """Draws of a segment after so many: it doubles whenever all places are taken."""
    length = DRAWS_PER_SEGMENT
    while num_draws // length >= NUM_SEGMENTS:
        length *= 2
    return length


# Random numbers.


def uniform(bits: Array) -> Array:
    """Numbers evenly from 0 to 1, never 0, of 32 random bits each."""
    return (bits.astype(jnp.float32) + 0.5) * np.float32(2**-32)


def normal_pair(bits_radius: Array, bits_angle: Array) -> Pair:
    """Two independent standard normal numbers (Box and Muller 1958).

    The angle lies within 45 degrees of an axis, where sine and cosine are short polynomials (those
    of Cephes' sinf.c); the lowest two bits choose the axis.
    """
    radius = jnp.sqrt(np.float32(-2 * math.log(2)) * fast_log2(uniform(bits_radius)))
    radius = jnp.where((bits_angle & 1) == 1, -radius, radius)
    angle = bits_angle.astype(jnp.int32).astype(jnp.float32) * np.float32(math.pi / 2**33)
    # Horner's form throughout: it leaves compilers one way to contract it, so one rounding.
    x = angle * angle
    sine = ((-1.9515295891e-4 * x + 8.3321608736e-3) * x - 1.6666654611e-1) * x * angle + angle
    cosine = (2.443315711809948e-5 * x - 1.388731625493765e-3) * x + 4.166664568298827e-2
    cosine = (cosine * x - 0.5) * x + 1
    is_swapped = (bits_angle & 2) == 2
    return (
        radius * jnp.where(is_swapped, sine, cosine),
        radius * jnp.where(is_swapped, cosine, sine),
    )


def streams(rng_key: Array, num_dims: int) -> tuple[Array, Array]:
    """Derives keys of Threefry from a typed key: [2, D, 1] for the moves, [2] for acceptance."""
    key_moves, key_accept = random.split(rng_key)
    keys = jax.vmap(random.fold_in, in_axes=(None, 0))(key_moves, jnp.arange(num_dims))
    return random.key_data(keys).T[..., None], random.key_data(key_accept)


def draw_pairs(keys: Pair, chains: Array, pairs: Array) -> tuple[Pair, Pair]:
    """Makes the random numbers of pairs of steps: pair p has steps 2p and 2p + 1.

    Args:
        keys: Result of `streams`.
        chains: Numbers of the chains, [C] uint32.
        pairs: Numbers of the pairs, [P] uint32.

    Returns:
        `(moves, uniforms)`, for the earlier and the later steps each: standard normal numbers
        [P, D, C], and uniforms [P, C] for acceptance.
    """
    bits = threefry(keys[0], chains, pairs[:, None, None])
    accept = threefry(keys[1], chains, pairs[:, None])
    return normal_pair(*bits), (uniform(accept[0]), uniform(accept[1]))


def scale_moves(factor: Array, normals: Array) -> Array:
    """Scales normal numbers [..., D, C] by a number, by [D] numbers, or by a triangle [D, D]."""
    if factor.ndim < 2:
        return normals * (factor[:, None] if factor.ndim else factor)
    # A sum and no product of matrices: the order of its terms must not depend on the shapes.
    return jnp.sum(factor[:, :, None] * normals[..., None, :, :], axis=-2)


def metropolis(
    logdensity_fn: LogDensityFn,
    position: Array,
    log_density: Array,
    move: Array,
    accept: Array,
) -> tuple[Array, Array, Array, Array]:
    """Takes one step of all chains; rejects a proposal whose log density is NaN or +inf.

    Args:
        logdensity_fn: Function from positions [C, D] to log densities [C] in nats.
        position: Positions [D, C].
        log_density: Log densities [C] at these.
        move: Differences of the proposals, [D, C].
        accept: Uniform numbers [C].

    Returns:
        Positions and log densities after the step; [C] whether the proposal was accepted, and
        whether its log density was a number.
    """
    proposal = position + move
    proposed = logdensity_fn(proposal.T)
    is_valid = proposed < jnp.inf
    is_accepted = is_valid & (accept < jnp.exp(proposed - log_density))
    position = jnp.where(is_accepted, proposal, position)
    return position, jnp.where(is_accepted, proposed, log_density), is_accepted, is_valid


# The fast way.


class Chains(NamedTuple):
    """The chains on the devices, B blocks of L; those beyond the number asked for are padding.

    Attributes:
        position: Positions [B, D, L].
        log_density: Log densities [B, L], nats.
        accepted: Proposals accepted since the sums began, [B, L] int32.
        invalid: Proposals rejected because their log density was NaN or +inf, [B, L] int32.
    """

    position: Any
    log_density: Any
    accepted: Any
    invalid: Any


class Span(NamedTuple):
    """Steps that are taken, scalars on the devices.

    Attributes:
        pair: Number of the first pair of steps since the start, uint32.
        done: Draws in the sums before, int32.
        count: Number of steps, even, int32.
    """

    pair: Any
    done: Any
    count: Any


def move_blocks(
    logdensity_fn: LogDensityFn,
    axis: str,
    chains: Chains,
    sums: Sums,
    keys: Pair,
    factor: Array,
    origin: Array,
    span: Span,
) -> tuple[Chains, Sums]:
    """Takes all steps of one block of chains after the other: it stays in the cache.

    XLA:CPU computes again whatever two of its kernels need. So the random numbers of a body of
    `DRAWS_PER_BODY` draws are made before the inner loop, each pair in one complex number, for a
    kernel has one output; log densities are made once, by `_compute_once`; and the inner loop takes
    one pair of steps, of which there is little else to compute again.

    Args:
        logdensity_fn: Log density of the target, in float32.
        axis: Axis of the mesh over which blocks lie; this function is mapped over its devices.
        chains: B blocks of this device.
        sums: Sums of these.
        keys: Result of `streams`.
        factor: Factor of the moves, as of `scale_moves`.
        origin: Point [D] near the mean, or float32 would lose small distances.
        span: Steps to take.
    """
    num_blocks, num_lanes = chains.log_density.shape
    blocks = jnp.arange(num_blocks, dtype=jnp.uint32)
    blocks = lax.axis_index(axis).astype(jnp.uint32) * num_blocks + blocks

    def of_block(block):
        number, *moving = block
        numbers = number * num_lanes + jnp.arange(num_lanes, dtype=jnp.uint32)

        def body(i: Array, carry):
            chains, sums = carry
            first = jnp.maximum(i * DRAWS_PER_BODY, span.done)
            end = jnp.minimum((i + 1) * DRAWS_PER_BODY, span.done + span.count)
            pair = span.pair + ((first - span.done) // 2).astype(jnp.uint32)
            pairs = pair + jnp.arange(DRAWS_PER_BODY // 2, dtype=jnp.uint32)
            moves, uniforms = draw_pairs(keys, numbers, pairs)
            paired_moves = lax.complex(*(scale_moves(factor, one) for one in moves))
            paired_uniforms = lax.complex(*uniforms)
            compute = _compute_once(logdensity_fn, end > first)

            def step(j: Array, carry: tuple[Chains, Any]) -> tuple[Chains, Any]:
                chains, pending = carry
                move = lax.dynamic_index_in_dim(paired_moves, j, keepdims=False)
                accept = lax.dynamic_index_in_dim(paired_uniforms, j, keepdims=False)
                for part in (jnp.real, jnp.imag):
                    position, log_density, is_accepted, is_valid = metropolis(
                        compute, chains.position, chains.log_density, part(move), part(accept)
                    )
                    accepted = chains.accepted + is_accepted
                    invalid = chains.invalid + ~is_valid
                    chains = Chains(position, log_density, accepted, invalid)
                    pending = add_draw(pending, origin, position)
                return chains, pending

            chains, pending = lax.fori_loop(0, (end - first) // 2, step, (chains, sums.pending))
            sums = finish_body(sums._replace(pending=pending), end % DRAWS_PER_BODY == 0)
            return chains, sums

        first = span.done // DRAWS_PER_BODY
        end = -(-(span.done + span.count) // DRAWS_PER_BODY)
        return lax.fori_loop(first, end, body, tuple(moving))

    moved: tuple[Chains, Sums] = lax.map(of_block, (blocks, chains, sums))
    return moved


def _compute_once(logdensity_fn: LogDensityFn, always: Array) -> LogDensityFn:
    """Keeps XLA:CPU from computing a cheap log density again in every kernel that needs it.

    Args:
        logdensity_fn: Log density in float32.
        always: True, which the compiler does not know: it stores what a branch returns.
    """

    def on_cpu(positions: Array) -> Array:
        return lax.cond(always, logdensity_fn, lambda x: jnp.zeros(len(x), jnp.float32), positions)

    # Elsewhere a branch would cost more than it saves.
    return lambda positions: lax.platform_dependent(positions, cpu=on_cpu, default=logdensity_fn)


def compiler_options(platform: str) -> ByName:
    """Chooses vectors of 512 bits if a CPU has them: XLA's default is 256, and these loops gain."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform == "cpu" and cpuinfo.exists() and " avx512f " in cpuinfo.read_text():
        return {"xla_cpu_prefer_vector_width": 512}
    return {}
