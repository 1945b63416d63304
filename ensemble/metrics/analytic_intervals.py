"""Intervals of means and shares over examples, by formula: what another test set might have said.

A score in 0..1 has an interval like Clopper and Pearson's, which never shrinks to a point: if all
of N examples are predicted rightly, another N might not be. A mean without a bound, such as the
NLL, has a t-interval that is corrected for skewness.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ensemble.metrics.checks import Floats

LEVEL = 0.95
POWER = 0.8

Interval = tuple[float, float]


def mean_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """A t-interval of a mean, corrected for skewness by the cubic transformation of Hall (1992).

    P. Hall, "On the removal of skewness by transformation", J. R. Stat. Soc. B 54, equation 2.

    Args:
        values: `[N]`.
        level: probability that it should hold the mean of what the values are draws from.

    Returns:
        low and high; a point where all values are equal, infinite ends where one is infinite.
    """
    values = np.asarray(values, np.float64)
    num, mean = len(values), float(np.mean(values))
    if not math.isfinite(mean):
        return (-math.inf, math.inf)
    deviations = values - mean
    variance = float(np.mean(deviations**2))
    if num < 2 or variance <= (1e-12 * mean) ** 2:
        return (mean, mean)
    skewness = float(np.mean(deviations**3)) / variance**1.5 / math.sqrt(num)
    error = math.sqrt(variance / (num - 1))
    quantile = float(special.stdtrit(num - 1, (1 + level) / 2))
    low, high = (mean - error * _untransformed(t, skewness) for t in (quantile, -quantile))
    return (low, high)


def _untransformed(value: float, skewness: float) -> float:
    """The t whose transformation t + g t^2 / 3 + g^2 t^3 / 27 + g / 6 is this value."""
    if abs(skewness) < 1e-6:
        return value
    return 3 / skewness * (float(np.cbrt(1 + skewness * (value - skewness / 6))) - 1)


def share_interval(share: float, variance: float, weight: float, level: float = LEVEL) -> Interval:
    """An interval of a score in 0..1 that is a mean of shares, with weights.

    It is that of Clopper and Pearson (1934) where the score is a plain share k / N of variance
    k (N - k) / N^3 and weight 1 / N, up to rounding of its moments. The upper end is a quantile of
    the beta distribution whose mean and variance are those of the score and of one more example of
    the given weight, as in Fay and Feuer (1997, Stat. Med. 16) with a gamma distribution for
    weighted sums of Poisson counts; the lower end likewise.

    Args:
        share: the score.
        variance: of the score.
        weight: by how much one further example could move it, 1 / N of a mean.
        level: probability that it should hold the expected score, at least.

    Returns:
        low and high, within 0..1.
    """
    tail = (1 + level) / 2
    return (
        1 - _upper(1 - share, variance, weight, tail),
        _upper(share, variance, weight, tail),
    )


def _upper(share: float, variance: float, weight: float, tail: float) -> float:
    rest = (1 - share) * weight / (1 + weight)
    mean, spread = share + rest, variance + rest**2
    if mean >= 1:
        return 1.0
    size = mean * (1 - mean) / spread - 1
    if size <= 0:
        return 1.0
    return float(special.betaincinv(mean * size, (1 - mean) * size, tail))


def influence_interval(
    share: float, influence: Floats, weight: float | None = None, level: float = LEVEL
) -> Interval:
    """`share_interval` of a score whose influence function is known at each of N examples.

    Args:
        share: the score, in 0..1.
        influence: `[N]`, by how much a further such example would move the score, times N; their
            mean is 0.
        weight: as of `share_interval`; 1 / N unless it is given.
        level: likewise.
    """
    num = len(influence)
    variance = float(np.mean(influence**2)) / max(num - 1, 1)
    return share_interval(share, variance, 1 / num if weight is None else weight, level)


def bounded_interval(
    values: ArrayLike, low: float = 0.0, high: float = 1.0, level: float = LEVEL
) -> Interval:
    """`share_interval` of a mean of values that lie between two bounds.

    Args:
        values: `[N]`.
        low: the least that a value can be.
        high: the largest.
        level: as of `share_interval`.
    """
    shares = (np.asarray(values, np.float64) - low) / (high - low)
    mean = float(np.mean(shares))
    ends = influence_interval(mean, shares - mean, level=level)
    return (low + (high - low) * ends[0], low + (high - low) * ends[1])


def num_to_see(difference: float, interval: Interval, num_examples: int) -> int:
    """How many examples would show a difference in 4 of 5 cases.

    That is the sample size of a two-sided test at 5% with a power of 80% (Cochran 1977, chapter 4),
    from the standard error that an interval has.

    Args:
        difference: that is to be seen, in the units of the interval.
        interval: 95%, of a mean or a difference over examples.
        num_examples: that it was made from.
    """
    error = (interval[1] - interval[0]) / 2 / float(special.ndtri((1 + LEVEL) / 2))
    wanted = difference / float(special.ndtri((1 + LEVEL) / 2) + special.ndtri(POWER))
    return math.ceil(num_examples * (error / wanted) ** 2)
