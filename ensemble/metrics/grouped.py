"""Intervals of scores over groups of examples, of which those of a group may be alike."""

import math
from collections.abc import Callable

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from ensemble.metrics.analytic_intervals import share_interval

MAX_GROUPS = 500
"""More are put together at random to so many."""
MIN_GROUPS = 10


def group_interval(
    statistic: Callable[[NDArray], float], groups: ArrayLike, kind: str, level: float = 0.95
) -> tuple[float, float] | None:
    """An interval of a score over groups: what a test set of other groups might have said.

    The delete-one-group jackknife with Student's t (Shao and Tu 1995, section 2.1), which needs
    fewer groups than a bootstrap of groups does. The degrees of freedom are those of as many groups
    of one size as weigh the same (Kish 1965). Positive scores have it on their logarithm; shares
    have exact intervals of as many independent examples as would vary as much (Korn and Graubard
    1998), and no narrower than those of one more group that is all of the other kind.

    Args:
        statistic: the score, of the counts `[N]`, how often each example is in a test set.
        groups: `[N]`, of each example.
        kind: "share", "positive" or "signed".
        level: probability that the interval should cover.

    Returns:
        (low, high); None of fewer than `MIN_GROUPS`, which say too little of others, and where a
        score is not finite.
    """
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    number = int(index.max()) + 1
    whole = statistic(np.ones(len(index), int))
    if number < MIN_GROUPS:
        return None
    if number > MAX_GROUPS:
        index = np.random.default_rng(0).permutation(number)[index] % MAX_GROUPS
        number = MAX_GROUPS
    values = np.array([statistic((index != one).astype(int)) for one in range(number)])
    if not np.isfinite([whole, *values]).all():
        return None
    sizes = np.bincount(index)
    effective = float(sizes.sum() ** 2 / (sizes**2).sum())
    reach = _reach(effective, level)
    if kind == "share":
        return _share(whole, _error(values), len(index), effective, level)
    if kind != "signed" and min(whole, *values) > 0:
        ends = reach * _error(np.log(values))
        return whole * math.exp(-ends), whole * math.exp(ends)
    ends = reach * _error(values)
    return whole - ends, whole + ends


def mean_over_groups(
    terms: ArrayLike, groups: ArrayLike, level: float = 0.95
) -> tuple[float, float] | None:
    """`group_interval` of the mean of terms `[N]`, which may be negative.

    Args:
        terms: `[N]`.
        groups: `[N]`, of each example.
        level: as of `group_interval`.
    """
    values = np.asarray(terms, np.float64)
    if not np.isfinite(values).all():
        return None

    def mean(counts: NDArray) -> float:
        return float(values @ counts / counts.sum())

    return group_interval(mean, groups, "signed", level)


def group_terms(terms: ArrayLike, groups: ArrayLike) -> NDArray:
    """Terms of groups, whose mean is that of the examples' terms.

    Args:
        terms: `[..., N]`.
        groups: `[N]`, of each example.

    Returns:
        `[..., G]`.
    """
    terms = np.asarray(terms, np.float64)
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    sums = np.add.reduceat(terms[..., order], starts, axis=-1)
    return sums * (len(starts) / terms.shape[-1])


def _reach(effective: float, level: float) -> float:
    """Standard errors to either side: Student's, and more, for scores of few groups are skewed.

    How much more is found by simulation: `python -m simulations --only groups.scores`.
    """
    quantile = scipy.special.stdtrit(max(effective - 2, 1), (1 + level) / 2)
    return float(quantile * (1 + 1.5 / effective))


def _error(left: NDArray) -> float:
    """Standard error by the jackknife, from the values without each group."""
    number = len(left)
    return math.sqrt((number - 1) / number * np.sum((left - left.mean()) ** 2))


def _share(
    value: float, error: float, num_examples: int, effective: float, level: float
) -> tuple[float, float]:
    """Interval of a share; where it is 0 or 1, groups count as one example each."""
    number = effective
    if error > 0:
        of_rows = scipy.special.stdtrit(max(num_examples - 1, 1), (1 + level) / 2)
        adjusted = (of_rows / _reach(effective, level)) ** 2
        number = min(value * (1 - value) / error**2 * adjusted, num_examples)
    held, tail = value * number, (1 - level) / 2
    low = 0.0 if held <= 0 else float(scipy.special.betaincinv(held, number - held + 1, tail))
    missed = number - held
    high = 1.0 if missed <= 0 else float(scipy.special.betaincinv(held + 1, missed, 1 - tail))
    if error == 0:
        return low, high
    # One more group may be all of the other kind: few that happen to be alike do not say otherwise.
    spread = (error * _reach(effective, level) / float(scipy.special.ndtri(1 - tail))) ** 2
    least, most = share_interval(value, spread, 1 / effective, level)
    return min(low, least), max(high, most)
