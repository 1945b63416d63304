"""What streaming sums over the draws of many chains say: moments, quantiles, R-hat, ESS, MCSE.

Chains move independently, so the variance between their means is a direct estimate of the error of
the mean over all of them, whatever the autocorrelation; with C chains it is known to a share of
sqrt(2 / (C - 1)). But those of a superchain share their start, and until that is forgotten only the
superchains are independent: the larger of the two errors is the one that is told. The effective
sample size follows from it. An interval is Student's, for an error that few chains tell is itself
uncertain, on K - 1 degrees of freedom of K superchains.

On the devices: the draws of a body of 8 steps are added in float32, the bodies' sums by compensated
summation (Kahan 1965), and what has gathered is put away in at most 8 segments of equal length,
which double when they are full. So the halves of a run are known at any time, whatever its length.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax

DRAWS_PER_BODY = 8
DRAWS_PER_COUNT = 16
"""One draw of so many goes into the histogram: the next ones would say nearly the same."""
DRAWS_PER_SEGMENT = 64
"""At first."""
NUM_SEGMENTS = 8
NUM_BINS = 512
MAX_RHAT = 1.1
"""Nested R-hat of chains that have left their starts."""
_DRIFT_ALARMS = 0.05  # Share of runs of one dimension without a drift in which one is seen.
_BINS_WITHIN = 8.0  # Standard deviations on either side.
_CARRY_BITS = 24  # Of a bin's count that are not carried: few enough for int32, whatever the run.


Pair = tuple[jax.Array, jax.Array]


class Grid(NamedTuple):
    """The place where draws are expected.

    Attributes:
        origin: [D], near the mean, or float32 would lose what is small beside it.
        bin_width: [D] of the histogram, whose middle is the origin.
    """

    origin: Any
    bin_width: Any

    @classmethod
    def around(cls, points: np.ndarray) -> "Grid":
        """The grid for draws that look like these [N, D]."""
        points = points.astype(np.float64)
        spread = points.std(axis=0)
        bin_width = 2 * _BINS_WITHIN / NUM_BINS * np.where(spread > 0, spread, 1)
        return cls(points.mean(axis=0).astype(np.float32), bin_width.astype(np.float32))


class Sums(NamedTuple):
    """Sums over the draws of each chain, of distances from the origin and of their squares.

    Attributes:
        pending: two of [B, D, L], over the body of draws that is not yet whole.
        totals: two of [B, D, L], over the whole bodies of the open segment.
        excess: what rounding has added to them.
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


class HostSums(NamedTuple):
    """Fetched sums in the order of the chains; distances from the origin, and their squares.

    Attributes:
        origin: [D].
        bin_width: [D].
        segments: two of [S, C, D], closed ones.
        rest: two of [C, D], over the draws after them.
        counts: [D, K + 2].
        segment_length: draws of a closed segment.
        num_draws: N of each chain, closed or not.
        num_left_out: draws of each chain before them.
    """

    origin: np.ndarray
    bin_width: np.ndarray
    segments: Sequence[np.ndarray]
    rest: Sequence[np.ndarray]
    counts: np.ndarray
    segment_length: int
    num_draws: int
    num_left_out: int = 0


def summarise(sums: HostSums, num_superchains: int) -> dict[str, np.ndarray]:
    """Computes moments and convergence in float64.

    Until chains have forgotten their starts, those of a superchain are not independent, and errors
    by chains alone are too small, by up to sqrt(C / K); so they are the larger of those by chains
    and those by superchains, of which there must be two.

    Args:
        sums: fetched.
        num_superchains: K, which divides C: groups of neighbouring chains from the same start.

    Returns:
        Arrays [D] by name; NaN is what cannot be said:

        - `mean`, `variance`: over all draws;
        - `mcse_mean`, `mcse_variance`: their standard errors, for chains and draws are finite: the
          larger of those over chains and over superchains;
        - `ess`: how many independent draws locate the mean as well;
        - `rhat`: split R-hat (Gelman et al. 2013), without ranks, of the closed segments' halves;
        - `nested_rhat`: of groups of chains from the same start (Margossian et al. 2022, "Nested
          R-hat: Assessing the convergence of Markov chain Monte Carlo when running many short
          chains");
        - `mean_interval`, `variance_interval`: [D, 2], of 95%, over chains; NaN where the chains
          still drift, have not left their starts, or had no warm-up;
        - `edges`: [D, K + 1] of the histogram;
        - `cdf`: [D, K + 1], the share of draws below each edge.
    """
    firsts, squares = (
        segments.sum(axis=0, dtype=np.float64) + rest
        for segments, rest in zip(sums.segments, sums.rest, strict=True)
    )
    num_draws = sums.num_draws
    steps = np.arange(NUM_BINS + 1) - NUM_BINS // 2
    counts = sums.counts.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = firsts / num_draws
        mean = means.mean(axis=0)
        # Of the squares of distances from the mean over all chains.
        seconds = squares / num_draws - 2 * mean * means + mean**2
        variance = seconds.mean(axis=0)
        mcse_mean = _standard_error(means, num_superchains)
        nested_rhat = _nested_rhat(firsts, squares, num_draws, num_superchains)
        has_begun = sums.num_left_out > 0  # Else the starts are among the draws.
        is_told = has_begun & (nested_rhat < MAX_RHAT) & ~_drifts(sums, mean, num_superchains)
        quantile = scipy.stats.t.ppf(0.975, num_superchains - 1)
        margins = [quantile * _error_of_groups(one, num_superchains) for one in (means, seconds)]
        # A variance is positive, and its error skewed; about the mean that is found it is too low.
        log_center = np.log(variance + mcse_mean**2)
        logs = _interval(log_center, margins[1] / variance, is_told)
        return {
            "mean": sums.origin + mean,
            "variance": variance,
            "mcse_mean": mcse_mean,
            "mcse_variance": _standard_error(seconds, num_superchains),
            "ess": variance / mcse_mean**2,
            "rhat": _split_rhat(sums),
            "nested_rhat": nested_rhat,
            "mean_interval": _interval(sums.origin + mean, margins[0], is_told),
            "variance_interval": np.exp(logs),
            "edges": sums.origin[:, None] + sums.bin_width[:, None] * steps,
            "cdf": np.cumsum(counts, axis=1)[:, :-1] / counts.sum(axis=1, keepdims=True),
        }


def quantiles(summary: Mapping[str, np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """Interpolates quantiles [D, Q]; NaN outside the histogram's edges."""
    found = np.full((len(summary["edges"]), len(shares)), np.nan)
    for d, (edges, cdf) in enumerate(zip(summary["edges"], summary["cdf"], strict=True)):
        levels, index = np.unique(cdf, return_index=True)  # The first edge of each level.
        if levels[0] == 0:
            index[0] = np.flatnonzero(cdf == 0)[-1]  # The draws begin where empty bins end.
        if len(levels) > 1:  # Smooth between edges, and never falling.
            inverse = scipy.interpolate.PchipInterpolator(levels, edges[index])
            found[d] = inverse(np.asarray(shares), extrapolate=False)
    return found


def _standard_error(values: np.ndarray, num_superchains: int) -> np.ndarray:
    """The standard error [D] of the mean over chains [C, D]: the larger by chains or superchains;
    NaN of one chain."""
    return np.fmax(*(_error_of_groups(values, number) for number in (len(values), num_superchains)))


def _error_of_groups(values: np.ndarray, num_groups: int) -> np.ndarray:
    """Standard error [D] of the mean over chains [C, D], by groups of neighbours; NaN of one."""
    if num_groups < 2:
        return np.full(values.shape[1], np.nan)
    groups = values.reshape(num_groups, -1, values.shape[1]).mean(axis=1)
    return groups.std(axis=0, ddof=1) / np.sqrt(num_groups)


def _interval(center: np.ndarray, margin: np.ndarray, is_told: np.ndarray) -> np.ndarray:
    """[D, 2], NaN where it is not to be told."""
    ends = np.stack([center - margin, center + margin], axis=-1)
    return np.where(is_told[:, None], ends, np.nan)


def _halves(sums: HostSums) -> tuple[np.ndarray, np.ndarray] | None:
    """Sums [2, C, D] of distances and of squares over the first and second half of the segments.

    An odd segment in the middle is left out. None: there is one segment at most.
    """
    half = len(sums.segments[0]) // 2
    if half == 0:
        return None
    ends = slice(half), slice(-half, None)
    firsts, squares = (
        np.stack([one[end].sum(axis=0, dtype=np.float64) for end in ends]) for one in sums.segments
    )
    return firsts, squares


def _drifts(sums: HostSums, mean: np.ndarray, num_superchains: int) -> np.ndarray:
    """Whether [D] means or variances of the halves of a run differ, by a paired t-test.

    The difference of two halves says nothing of their sum: what is told is not chosen by its value.
    """
    halves = _halves(sums)
    if halves is None or num_superchains < 2:
        return np.zeros(len(mean), bool)
    firsts, squares = (one[1] - one[0] for one in halves)
    critical = scipy.stats.t.ppf(1 - _DRIFT_ALARMS / 4, num_superchains - 1)  # Two, on two sides.
    differences = (firsts, squares - 2 * mean * firsts)
    return np.any(
        [
            np.abs(one.mean(axis=0)) > critical * _error_of_groups(one, num_superchains)
            for one in differences
        ],
        axis=0,
    )


def _split_rhat(sums: HostSums) -> np.ndarray:
    """Compares the first and the second half of all chains."""
    halves = _halves(sums)
    if halves is None:
        return np.full(len(sums.origin), np.nan)
    firsts, squares = (np.concatenate(one) for one in halves)
    num_draws = len(sums.segments[0]) // 2 * sums.segment_length
    within = _within(firsts, squares, num_draws).mean(axis=0)
    between = (firsts / num_draws).var(axis=0, ddof=1)
    return np.sqrt((num_draws - 1) / num_draws + between / within)


def _within(firsts: np.ndarray, squares: np.ndarray, num_draws: int) -> np.ndarray:
    """Variances within chains from sums [C, D] over N draws."""
    return (squares - firsts**2 / num_draws) / (num_draws - 1)


def _nested_rhat(
    firsts: np.ndarray, squares: np.ndarray, num_draws: int, num_superchains: int
) -> np.ndarray:
    """Compares K groups of M chains, by sums [C, D] over N draws; NaN of one group."""
    num_dims = firsts.shape[1]
    if num_superchains < 2 or num_draws < 2:
        return np.full(num_dims, np.nan)
    means = (firsts / num_draws).reshape(num_superchains, -1, num_dims)
    within = _within(firsts, squares, num_draws).mean(axis=0)
    if means.shape[1] > 1:
        within = within + means.var(axis=1, ddof=1).mean(axis=0)
    return np.sqrt(1 + means.mean(axis=1).var(axis=0, ddof=1) / within)
