"""Intervals of scores of predicted numbers: what another test set might have said.

All are over the test examples; the members stay as they are. Those of means are t-intervals that
are corrected for skewness. No interval can be told of a mean whose terms have so heavy a tail that
their variance may be infinite, such as the squares of errors with Student's t distribution on three
degrees of freedom: then a few examples decide, and those that were not drawn decide as much.
"""

import math
from collections.abc import Mapping

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from ensemble import metrics
from ensemble.metrics.analytic_intervals import Interval, mean_interval
from ensemble.metrics.grouped import mean_over_groups
from ensemble.metrics.tails import has_heavy_tail

Intervals = dict[str, Interval | None]

_INTERVAL_SCORE = "interval_score"
_OF_SQUARES = ("rmse", "nll")
"""Scores that a large error raises by its square."""
LEVEL = 0.95
FEW_MISSED = 10
"""With fewer targets outside of the intervals, the few decide on the interval score."""


def intervals(terms: Mapping[str, ArrayLike]) -> Intervals:
    """95% intervals of the scores of which these are the terms [N], as `regression.means` says.

    Those of coverage are exact (Clopper & Pearson 1934), which says something also where all or no
    targets are held.

    Returns:
        (low, high) by name; None where it cannot be told: because the tail is too heavy, a term is
        not finite, or the interval score is that of few missed targets.
    """
    found: Intervals = {}
    for name, one in terms.items():
        values = np.asarray(one, np.float64)
        if name.startswith("coverage"):
            found[name] = metrics.error_interval(int(values.sum()), len(values))
        elif name.startswith(_OF_SQUARES):
            found[name] = _root(of_mean(values)) if name == "rmse" else of_mean(values)
        elif np.isfinite(values).all() and not _is_of_few(terms, name):
            found[name] = mean_interval(values)
        else:
            found[name] = None
    return found


def of_mean(
    values: NDArray, level: float = LEVEL, groups: NDArray | None = None
) -> Interval | None:
    """An interval of the mean of terms [N], over their groups [N] if there are any.

    None where it cannot be told.
    """
    if not np.isfinite(values).all() or has_heavy_tail(values):
        return None
    if groups is not None:
        return mean_over_groups(values, groups, level)
    return mean_interval(values, level)


def of_rmse_difference(
    squares: NDArray, others: NDArray, level: float = LEVEL, groups: NDArray | None = None
) -> Interval | None:
    """An interval of the RMSE of `others` less that of `squares`, squared errors [N] in pairs.

    To first order, each example moves a root mean square by its square over twice the root.
    """
    roots = [math.sqrt(float(one.mean())) for one in (squares, others)]
    if not all(math.isfinite(one) and one > 0 for one in roots):
        return None
    low_high = of_mean(others / (2 * roots[1]) - squares / (2 * roots[0]), level, groups)
    middle = (roots[1] - roots[0]) / 2  # That mean is half of the difference.
    return None if low_high is None else (low_high[0] + middle, low_high[1] + middle)


def of_rmse_ratio(
    squares: NDArray, others: NDArray, level: float = LEVEL, groups: NDArray | None = None
) -> Interval | None:
    """An interval of the RMSE of `others` over that of `squares`, squared errors [N] in pairs."""
    first, second = float(squares.mean()), float(others.mean())
    if not (math.isfinite(first) and math.isfinite(second) and first > 0 and second > 0):
        return None
    low_high = of_mean(others / (2 * second) - squares / (2 * first), level, groups)
    if low_high is None:
        return None
    ratio = math.sqrt(second / first)
    return ratio * math.exp(low_high[0]), ratio * math.exp(low_high[1])


def of_rank_correlation(first: NDArray, second: NDArray) -> Interval:
    """A 95% interval of Spearman's rank correlation of values [N], neither of which is constant.

    Each example's influence on the correlation gives its variance (Hájek's projection), and
    Fisher's z the interval.
    """
    shares = [_mid_ranks(one) / len(one) - 0.5 for one in (first, second)]
    both = shares[0] * shares[1] + _above(first, shares[1]) + _above(second, shares[0])
    scale = math.sqrt(float(np.mean(shares[0] ** 2) * np.mean(shares[1] ** 2)))
    found = float(np.mean(shares[0] * shares[1])) / scale
    error = float(np.std(both, ddof=1)) / scale / max(1 - found**2, 1e-12) / math.sqrt(len(both))
    half_width = float(scipy.special.stdtrit(len(both) - 1, (1 + LEVEL) / 2)) * error
    middle = math.atanh(min(max(found, -1 + 1e-12), 1 - 1e-12))
    return math.tanh(middle - half_width), math.tanh(middle + half_width)


def _is_of_few(terms: Mapping[str, ArrayLike], name: str) -> bool:
    """Whether this is an interval score of intervals that miss few targets."""
    if not name.startswith(_INTERVAL_SCORE):
        return False
    held = terms.get(name.replace(_INTERVAL_SCORE, "coverage"))  # None of targets partly known.
    return held is None or bool(np.sum(~np.asarray(held, bool)) < FEW_MISSED)


def _root(interval: Interval | None) -> Interval | None:
    return None if interval is None else (math.sqrt(max(interval[0], 0)), math.sqrt(interval[1]))


def _mid_ranks(values: NDArray) -> NDArray:
    """[N], from 0.5 to N - 0.5."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[inverse]


def _above(values: NDArray, shares: NDArray) -> NDArray:
    """[N]: the mean over examples of the shares of those whose values are above, half if equal."""
    found, inverse = np.unique(values, return_inverse=True)
    sums = np.bincount(inverse, weights=shares, minlength=len(found))
    at_or_above = np.cumsum(sums[::-1])[::-1]
    return ((at_or_above - sums / 2) / len(values))[inverse]
