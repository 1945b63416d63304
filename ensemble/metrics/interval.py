"""The one interval: of a mean of terms, over rows or over groups of rows.

Every metric of this package is the mean of terms [N], one per row. A metric that is no mean by
nature (RMSE, AURC, AUROC) has value + influence function as terms: N times the change that one more
such row makes. So a value, its interval, a paired difference, a change under shift, and all of
these over groups, are one function. The members stay fixed: an interval covers what other test
sets of this size give.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]
Bounds = tuple[float, float] | None
MIN_ROWS = 10
"""Fewer rows, or groups of rows, determine no interval."""
MIN_TAIL_ROWS = 500
"""Fewer rows do not show how heavy a tail is."""
INFINITE_VARIANCE = 0.5
"""Shape of a generalised Pareto tail from which on the variance is infinite."""
_TAIL_SHARE = 0.2
_MOST_SKEWED = 0.2
"""Skewness of the mean of bounded terms that is corrected: with more of it, shares close to a bound
would have intervals several times as wide as those of Clopper and Pearson."""


class Estimate(NamedTuple):
    """A number and its interval.

    Attributes:
        value: Mean of the terms.
        low: Lower end; None if the interval is not known.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def above(self, bound: float = 0.0) -> bool:
        """Whether the whole interval lies above a bound."""
        return self.low is not None and self.low > bound

    def below(self, bound: float = 0.0) -> bool:
        """Whether the whole interval lies below a bound."""
        return self.high is not None and self.high < bound


def interval(
    terms: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    bounds: Bounds = None,
    level: float = 0.95,
    weight: float = 1.0,
    symmetric: bool = False,
) -> Estimate:
    """Mean of terms with Student's t interval, corrected for skewness.

    Skewness is removed by the cubic transformation of Hall 1992 ("On the removal of skewness by
    transformation", equation 2), since a few surprising rows decide an NLL. Over groups the
    variance is that of their sums (Liang and Zeger 1986), with the degrees of freedom of as many
    equal groups (Kish 1965). If terms are bounded, one pseudo-row at either bound is added (Agresti
    and Coull 1998; Bonett and Price 2012), so that 300 right answers out of 300 have an interval of
    some width. With groups a pseudo-row counts as many rows as vary like one independent row.
    Without pseudo-rows few rows underestimate a variance, so half the kurtosis over N widens it.

    Args:
        terms: [N], in the unit of the metric; or one number, which has no interval.
        groups: Labels [N] of rows that may be alike; None: rows are independent.
        bounds: Least and largest possible value.
        level: Probability that the interval holds the expected metric.
        weight: Most that one further row moves the value, in N-ths of its distance to a bound; 0:
            add no pseudo-rows.
        symmetric: If True, the skewness that a few rows show is taken for chance.
    """
    terms = np.atleast_1d(np.asarray(terms, np.float64))
    value = float(np.mean(terms)) if len(terms) else math.nan
    index = np.arange(len(terms))
    if groups is not None and len(terms) >= MIN_ROWS:
        index = np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(index, terms)
    sizes = np.bincount(index).astype(np.float64)
    if not math.isfinite(value) or len(sums) < MIN_ROWS:
        return Estimate(value)
    has_pseudo_rows = bounds is not None and weight > 0
    if has_pseudo_rows:
        # Rows that count as one independent row (Kish 1965).
        size = sizes.mean()
        if of_rows := np.sum((terms - value) ** 2):
            size = np.clip(np.sum((sums - value * sizes) ** 2) / of_rows, 1, size)
        sums = np.append(sums, size * (value + weight * (np.asarray(bounds) - value)))
        sizes = np.append(sizes, [size, size])
    number = len(sums)
    total = sizes.sum()
    middle = float(sums.sum() / total)
    residuals = sums - middle * sizes
    variance = float(np.mean(residuals**2))
    if variance <= (1e-12 * middle) ** 2:
        return Estimate(value, value, value)
    error = math.sqrt(variance * number * number / (number - 1)) / total
    if not has_pseudo_rows:
        error *= 1 + float(np.mean(residuals**4)) / variance**2 / (2 * number)
    most = 0.0 if symmetric else math.inf if bounds is None else _MOST_SKEWED
    skewness = float(np.mean(residuals**3)) / variance**1.5 / math.sqrt(number)
    skewness = float(np.clip(skewness, -most, most))
    freedom = total**2 / (sizes**2).sum() - 1
    reach = float(special.stdtrit(freedom, (1 + level) / 2))
    ends = np.array([middle - error * _untransformed(t, skewness) for t in (reach, -reach)])
    return Estimate(value, *(ends if bounds is None else ends.clip(*bounds)).tolist())


def joint(number: int) -> float:
    """Level of each of several intervals that hold together (Bonferroni)."""
    return 1 - 0.05 / max(number, 1)


def has_heavy_tail(values: NDArray) -> bool:
    """Whether the variance of draws [N] may be infinite, as far as so many can tell.

    The largest draws, less their threshold, have a generalised Pareto distribution, whose shape is
    1 / k for a tail like that of x^-k, at most 1, and 0 for one that falls exponentially. It is
    estimated by probability-weighted moments (Hosking and Wallis 1987, "Parameter and quantile
    estimation for the generalized Pareto distribution"); Vehtari et al. (arXiv:1507.02646) judge
    means by it.
    """
    ordered = np.sort(values)
    count = int(_TAIL_SHARE * len(ordered))
    if len(ordered) < MIN_TAIL_ROWS or not np.isfinite(ordered).all():
        return False
    tail = ordered[-count:] - ordered[-count - 1]
    if not tail[-1] > 0:
        return False
    share = np.mean(tail * (np.arange(count, 0, -1) - 0.5) / count) / np.mean(tail)
    return bool(2 - 1 / (1 - 2 * share) >= INFINITE_VARIANCE)


def _untransformed(value: float, skewness: float) -> float:
    """The t whose transformation t + g t^2 / 3 + g^2 t^3 / 27 + g / 6 is this value."""
    if abs(skewness) < 1e-6:
        return value
    return 3 / skewness * (float(np.cbrt(1 + skewness * (value - skewness / 6))) - 1)
