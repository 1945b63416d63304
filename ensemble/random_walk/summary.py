"""What sums over the draws of many chains say: moments, quantiles, R-hat, ESS, MCSE.

Chains move independently, so the variance between their means is a direct estimate of the error of
the mean over all of them, whatever the autocorrelation; with C chains it is known to a share of
sqrt(2 / (C - 1)). But those of a superchain share their start, and until that is forgotten only the
superchains are independent: the larger of the two errors is the one that is told. The effective
sample size follows from it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.random_walk.moments import NUM_BINS, segment_length
from ensemble.random_walk.walker import Walk


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
        - `edges`: [D, K + 1] of the histogram;
        - `cdf`: [D, K + 1], the share of draws below each edge.
    """
    length = segment_length(num_draws)
    number = num_draws // length
    half = number // 2  # An odd segment in the middle is of neither half.
    closed = np.stack([np.moveaxis(one, 1, 0)[:number] for one in walk.closed])
    parts = closed[:, :half], closed[:, number - half :]
    halves = [one.sum(axis=1, dtype=np.float64) for one in parts]
    totals, excess, pending = (
        np.stack(one).astype(np.float64)
        for one in (walk.sums.totals, walk.sums.excess, walk.sums.pending)
    )
    firsts, squares = closed.sum(axis=1, dtype=np.float64) + totals - excess + pending
    origin, bin_width = (np.asarray(one, np.float64) for one in walk.grid)
    steps = np.arange(NUM_BINS + 1) - NUM_BINS // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        means = firsts / num_draws
        mean = means.mean(axis=0)
        # Of the squares of distances from the mean over all chains.
        seconds = squares / num_draws - 2 * mean * means + mean**2
        variance = seconds.mean(axis=0)
        mcse_mean = _standard_error(means, num_superchains)
        nested = _ratio((firsts, squares), num_draws, num_superchains)
        split = _ratio(np.concatenate(halves, axis=1), np.float64(half * length), 2 * len(means))
        return {
            "mean": origin + mean,
            "variance": variance,
            "mcse_mean": mcse_mean,
            "mcse_variance": _standard_error(seconds, num_superchains),
            "ess": variance / mcse_mean**2,
            "rhat": np.sqrt(1 - 1 / np.float64(half * length) + split),
            "nested_rhat": np.sqrt(1 + nested),
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


def _ratio(sums: Sequence[NDArray] | NDArray, num_draws: float, num_groups: int) -> NDArray:
    """Variance [D] between groups of neighbouring chains over that within.

    Args:
        sums: Sums [C, D] of distances and of squares, over N draws of each chain.
        num_draws: N.
        num_groups: Number of groups; of one, and without draws, the result is NaN.
    """
    firsts, squares = sums
    means = firsts / num_draws
    within = ((squares - firsts * means) / (num_draws - 1)).mean(axis=0)
    groups = means.reshape(num_groups, -1, means.shape[1])
    if groups.shape[1] > 1:
        within = within + groups.var(axis=1, ddof=1).mean(axis=0)
    return num_groups * _error_of_groups(means, num_groups) ** 2 / within
