"""What sums over the draws of many chains say: moments, quantiles, R-hat, ESS, MCSE; their report.

Chains move independently, so the variance between their means is a direct estimate of the error of
the mean over all of them, whatever the autocorrelation; with C chains it is known to a share of
sqrt(2 / (C - 1)). But those of a superchain share their start, and until that is forgotten only the
superchains are independent: the larger of the two errors is the one that is reported. The effective
sample size follows from it.
"""

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.errors import plural
from ensemble.pytrees import ByName
from ensemble.random_walk.block_kernel import segment_length
from ensemble.report.table import Section, grid

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in a report."""
MAX_RHAT = 1.1  # Of chains that agree, and have left their starts.
_MIN_DRAWN = 500  # Positions, fewer of which say little of quantiles.
_MAX_CHAINS = 2**15  # Whose positions give the quantiles.


def summarise(walk: Any, num_draws: int, num_superchains: int) -> dict[str, NDArray]:
    """Computes moments and convergence in float64.

    Args:
        walk: `Walk` on the host.
        num_draws: Number of draws of each chain in the sums.
        num_superchains: Number K of groups of neighbouring chains that share a start; it divides C.

    Returns:
        Arrays [D] by name; NaN is what cannot be said:

        - `mean`, `variance`: over all draws;
        - `mcse_mean`, `mcse_variance`: their standard errors, for chains and draws are finite: the
          larger of those over chains and over superchains;
        - `ess`: how many independent draws locate the mean as well;
        - `rhat`: split R-hat (Gelman et al. 2013), without ranks, of the marked segments' halves;
        - `nested_rhat`: of groups of chains from the same start (Margossian et al. 2022, "Nested
          R-hat: Assessing the convergence of Markov chain Monte Carlo when running many short
          chains");
        - `quantiles`: [Q, D] at the levels `SHARES`, of positions at the ends of segments.
    """
    length = segment_length(num_draws)
    number = num_draws // length
    half = number // 2  # An odd segment in the middle is of neither half.
    half_firsts, half_squares = (
        np.concatenate([one[:, half - 1], one[:, number - 1] - one[:, number - half - 1]])
        for one in walk.marks[:2]
    )
    firsts, squares = (
        np.asarray(total, np.float64) - excess + pending
        for pending, total, excess in zip(*walk.sums, strict=True)
    )
    positions = walk.marks[2]
    drawn = positions[:: 1 + len(positions) // _MAX_CHAINS, :number].reshape(-1, walk.origin.size)
    if len(drawn) < _MIN_DRAWN:
        drawn = np.full_like(drawn, np.nan, shape=(1, walk.origin.size))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = firsts / num_draws
        mean = means.mean(axis=0)
        # Of the squares of distances from the mean over all chains.
        seconds = squares / num_draws - 2 * mean * means + mean**2
        variance = seconds.mean(axis=0)
        mcse_mean = _standard_error(means, num_superchains)
        in_half = np.float64(half * length)
        split = _ratio(half_firsts, half_squares, in_half, 2 * len(means))
        return {
            "mean": walk.origin + mean,
            "variance": variance,
            "mcse_mean": mcse_mean,
            "mcse_variance": _standard_error(seconds, num_superchains),
            "ess": variance / mcse_mean**2,
            "rhat": np.sqrt(1 - 1 / in_half + split),
            "nested_rhat": np.sqrt(1 + _ratio(firsts, squares, num_draws, num_superchains)),
            "quantiles": np.quantile(drawn, SHARES, axis=0),
        }


def _standard_error(values: NDArray, num_superchains: int) -> NDArray:
    """The standard error [D] of the mean over chains [C, D]: the larger by chains or superchains;
    NaN of one chain."""
    by_chains = _error_of_groups(values, len(values))
    return np.fmax(by_chains, _error_of_groups(values, num_superchains))


def _error_of_groups(values: NDArray, num_groups: int) -> NDArray:
    """Standard error [D] of the mean over chains [C, D], by groups of neighbours; NaN of one."""
    groups = values.reshape(num_groups, -1, values.shape[1]).mean(axis=1)
    squares = np.square(groups - groups.mean(axis=0)).sum(axis=0)
    return np.sqrt(squares / (num_groups * (num_groups - 1)))


def _ratio(firsts: NDArray, squares: NDArray, num_draws: float, num_groups: int) -> NDArray:
    """Variance [D] between groups of neighbouring chains over that within.

    Args:
        firsts: Sums [C, D] of distances over N draws of each chain.
        squares: Sums of their squares.
        num_draws: N.
        num_groups: Number of groups; of one, and without draws, the result is NaN.
    """
    means = np.asarray(firsts, np.float64) / num_draws
    within = ((squares - firsts * means) / (num_draws - 1)).mean(axis=0)
    groups = means.reshape(num_groups, -1, means.shape[1])
    if groups.shape[1] > 1:
        within = within + groups.var(axis=1, ddof=1).mean(axis=0)
    return num_groups * _error_of_groups(means, num_groups) ** 2 / within


def _contents(report: ByName) -> list[str]:
    """The moments of the density with their intervals, a dimension per line, and their worth."""
    posterior = report["posterior"]
    rhat = np.maximum(posterior["rhat_max"], posterior["nested_rhat_max"])
    # An error that few groups of chains tell is itself uncertain.
    width = (
        scipy.stats.t.ppf(0.975, posterior["num_superchains"] - 1) if rhat < MAX_RHAT else np.nan
    )
    rows = []
    for d, ess in enumerate(posterior["ess"]):
        row = [str(d)]
        for name in ("mean", "variance"):
            value, margin = posterior[name][d], width * posterior[f"mcse_{name}"][d]
            ends = f"[{value - margin:.6g}, {value + margin:.6g}]"
            row += [f"{value:.6g}", ends.replace("[nan, nan]", "not known")]
        rows.append([*row, f"{ess:.6g}"])
    worth = "too few chains or samples to say what they are worth"
    if np.isfinite(posterior["ess_min"] + rhat):
        worth = f"worth {posterior['ess_min']:,.0f}: R-hat up to {rhat:.4f}"
    text = (
        f"{plural(posterior['num_total_samples'], 'sample')} of "
        f"{plural(posterior['num_chains'], 'chain')}, {worth}, {posterior['accept']:.0%} accepted."
    )
    if posterior["num_invalid"]:
        text += f" {posterior['num_invalid']:,} proposals without a log density were rejected."
    table = grid(["dimension", "mean", "95%", "variance", "95%", "ESS"], rows)
    return [table, "", text]


SECTION = Section(_contents, stands_alone=True)
