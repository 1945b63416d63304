"""What sums over the draws of many chains say: moments, quantiles, R-hat, ESS, MCSE.

Chains move independently, so the variance between their means is a direct estimate of the error of
the mean over all of them, whatever the autocorrelation; with C chains it is known to a share of
sqrt(2 / (C - 1)). But those of a superchain share their start, and until that is forgotten only the
superchains are independent: the larger of the two errors is the one that is told. The effective
sample size follows from it. An interval is Student's, for an error that few chains tell is itself
uncertain, on K - 1 degrees of freedom of K superchains.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.random_walk.moments import NUM_BINS, segment_length
from ensemble.random_walk.walker import Walk

MAX_RHAT = 1.1
"""Nested R-hat of chains that have left their starts."""
_DRIFT_ALARMS = 0.05  # Share of runs of one dimension without a drift in which one is seen.


def summarise(walk: Walk, num_draws: int, num_superchains: int) -> dict[str, NDArray]:
    """Computes moments and convergence in float64.

    Until chains have forgotten their starts, those of a superchain are not independent, and errors
    by chains alone are too small, by up to sqrt(C / K); so they are the larger of those by chains
    and those by superchains, of which there must be two.

    Args:
        walk: Walk on the host.
        num_draws: Number of draws of each chain in the sums.
        num_superchains: Number K of groups of neighbouring chains that share a start; it divides C.

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
          still drift, or have not left their starts;
        - `edges`: [D, K + 1] of the histogram;
        - `cdf`: [D, K + 1], the share of draws below each edge.
    """
    length = segment_length(num_draws)
    closed = [np.moveaxis(one, 1, 0)[: num_draws // length] for one in walk.closed]
    halves = _halves(closed)
    firsts, squares = (
        segments.sum(axis=0, dtype=np.float64) + (total.astype(np.float64) - excess + pending)
        for segments, total, excess, pending in zip(
            closed, walk.sums.totals, walk.sums.excess, walk.sums.pending, strict=True
        )
    )
    origin, bin_width = (np.asarray(one, np.float64) for one in walk.grid)
    steps = np.arange(NUM_BINS + 1) - NUM_BINS // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        means = firsts / num_draws
        mean = means.mean(axis=0)
        # Of the squares of distances from the mean over all chains.
        seconds = squares / num_draws - 2 * mean * means + mean**2
        variance = seconds.mean(axis=0)
        mcse_mean = _standard_error(means, num_superchains)
        nested_rhat = _nested_rhat(firsts, squares, num_draws, num_superchains)
        is_told = (nested_rhat < MAX_RHAT) & ~_drifts(halves, mean, num_superchains)
        quantile = np.where(is_told, scipy.stats.t.ppf(0.975, num_superchains - 1), np.nan)
        margins = [quantile * _error_of_groups(one, num_superchains) for one in (means, seconds)]
        # A variance is positive, and its error skewed; about the mean that is found it is too low.
        logs = _interval(np.log(variance + mcse_mean**2), margins[1] / variance)
        return {
            "mean": origin + mean,
            "variance": variance,
            "mcse_mean": mcse_mean,
            "mcse_variance": _standard_error(seconds, num_superchains),
            "ess": variance / mcse_mean**2,
            "rhat": _split_rhat(halves, np.float64(num_draws // length // 2 * length)),
            "nested_rhat": nested_rhat,
            "mean_interval": _interval(origin + mean, margins[0]),
            "variance_interval": np.exp(logs),
            "edges": origin[:, None] + np.outer(bin_width, steps),
            "cdf": np.cumsum(walk.counts, axis=1)[:, :-1] / walk.counts.sum(axis=1, keepdims=True),
        }


def quantiles(summary: Mapping[str, NDArray], shares: Sequence[float]) -> NDArray:
    """Interpolates quantiles [D, Q]; NaN outside the histogram's edges."""
    found = np.full((len(summary["edges"]), len(shares)), np.nan)
    for row, edges, cdf in zip(found, summary["edges"], summary["cdf"], strict=True):
        levels, index = np.unique(cdf, return_index=True)  # The first edge of each level.
        index[0] = np.searchsorted(cdf, levels[0], "right") - 1  # Draws begin after empty bins.
        if len(levels) > 1:  # Smooth between edges, and never falling.
            row[:] = scipy.interpolate.PchipInterpolator(levels, edges[index], extrapolate=False)(
                shares
            )
    return found


def _standard_error(values: NDArray, num_superchains: int) -> NDArray:
    """The standard error [D] of the mean over chains [C, D]: the larger by chains or superchains;
    NaN of one chain."""
    of_chains = _error_of_groups(values, len(values))
    return np.fmax(of_chains, _error_of_groups(values, num_superchains))


def _error_of_groups(values: NDArray, num_groups: int) -> NDArray:
    """Standard error [D] of the mean over chains [C, D], by groups of neighbours; NaN of one."""
    groups = values.reshape(num_groups, -1, values.shape[1]).mean(axis=1)
    squares = np.square(groups - groups.mean(axis=0)).sum(axis=0)
    return np.sqrt(squares / (num_groups * (num_groups - 1)))


def _interval(center: NDArray, margin: NDArray) -> NDArray:
    """Ends [D, 2] of intervals."""
    return np.stack([center - margin, center + margin], axis=-1)


def _halves(closed: Sequence[NDArray]) -> NDArray:
    """Sums [2, 2, C, D] of distances and of squares, over the first and second half of segments.

    An odd segment in the middle is left out.
    """
    half = len(closed[0]) // 2
    ends = slice(half), slice(len(closed[0]) - half, None)
    return np.stack([[one[end].sum(axis=0, dtype=np.float64) for end in ends] for one in closed])


def _drifts(halves: NDArray, mean: NDArray, num_superchains: int) -> NDArray:
    """Whether [D] means or variances of the halves of a run differ, by a paired t-test.

    The difference of two halves says nothing of their sum: what is told is not chosen by its value.
    """
    firsts, squares = halves[:, 1] - halves[:, 0]
    critical = scipy.stats.t.ppf(1 - _DRIFT_ALARMS / 4, num_superchains - 1)  # Two, on two sides.
    is_seen = [
        np.abs(one.mean(axis=0)) > critical * _error_of_groups(one, num_superchains)
        for one in (firsts, squares - 2 * mean * firsts)
    ]
    return is_seen[0] | is_seen[1]


def _split_rhat(halves: NDArray, num_draws: float) -> NDArray:
    """Compares the first and the second half, of so many draws each, of all chains; NaN of none."""
    firsts, squares = halves.reshape(2, -1, halves.shape[-1])
    within = _within(firsts, squares, num_draws).mean(axis=0)
    between = (firsts / num_draws).var(axis=0, ddof=1)
    return np.sqrt((num_draws - 1) / num_draws + between / within)


def _within(firsts: NDArray, squares: NDArray, num_draws: float) -> NDArray:
    """Variances within chains from sums [C, D] over N draws."""
    return (squares - firsts**2 / num_draws) / (num_draws - 1)


def _nested_rhat(
    firsts: NDArray, squares: NDArray, num_draws: int, num_superchains: int
) -> NDArray:
    """Compares K groups of M chains, by sums [C, D] over N draws; NaN of one group."""
    means = firsts / num_draws
    within = _within(firsts, squares, num_draws).mean(axis=0)
    groups = means.reshape(num_superchains, -1, means.shape[1])
    if groups.shape[1] > 1:
        within = within + groups.var(axis=1, ddof=1).mean(axis=0)
    return np.sqrt(1 + num_superchains * _error_of_groups(means, num_superchains) ** 2 / within)
