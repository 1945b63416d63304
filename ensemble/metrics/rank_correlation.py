"""An interval of Spearman's rank correlation."""

import math

import numpy as np
import scipy.special
from numpy.typing import NDArray

from ensemble.metrics.analytic_intervals import LEVEL, Interval


def rank_correlation_interval(first: NDArray, second: NDArray) -> Interval:
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
