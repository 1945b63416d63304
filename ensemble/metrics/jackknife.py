"""Intervals of the difference of two ensembles: over examples, or over members and examples."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ensemble.metrics.checks import Floats

Interval = tuple[float, float]
POWER = 0.8
"""The probability of which it is said what it takes to see a difference."""
_TAIL = 0.975


def mean_difference_interval(
    ours: ArrayLike, theirs: ArrayLike, *, level: float = 0.95
) -> Interval | None:
    """Interval over examples of the difference of two scores that are means of terms.

    Student's t. Where a few examples decide, their variance is known badly: it has the degrees of
    freedom 2 N / (kurtosis - 1), which makes its own variance right (Satterthwaite 1946).

    Args:
        ours: terms `[N]` of one.
        theirs: terms `[N]` of the other, of the same examples, whose mean is taken less ours.
        level: of the interval.

    Returns:
        (low, high); None where it is not finite, or N is one.
    """
    with np.errstate(invalid="ignore"):  # Of two infinite terms.
        values = np.asarray(theirs, np.float64) - np.asarray(ours, np.float64)
    num, mean = len(values), float(np.mean(values))
    if num < 2 or not math.isfinite(mean):
        return None
    squares = (values - mean) ** 2
    variance = float(np.sum(squares)) / (num - 1)
    if variance == 0:
        return mean, mean
    kurtosis = float(np.mean(squares**2)) / float(np.mean(squares)) ** 2
    degrees = min(2 * num / max(kurtosis - 1, 1e-9), num - 1)
    half_width = float(scipy.stats.t.ppf((1 + level) / 2, degrees)) * math.sqrt(variance / num)
    return mean - half_width, mean + half_width


def share_difference_interval(
    ours: ArrayLike, theirs: ArrayLike, *, level: float = 0.95
) -> Interval:
    """Interval over examples of the difference of two shares of the same examples.

    One example is added to either kind of those on which the two differ (Bonett and Price 2012,
    "Adjusted Wald confidence interval for a difference of binomial proportions based on paired
    data"), so that there is an interval where they differ on few or none.

    Args:
        ours: `[N]` in 0..1: whether an example counts, or by how much.
        theirs: `[N]` of the other, whose share is taken less that of `ours`.
        level: with which it holds the difference, at least.
    """
    change = np.asarray(theirs, np.float64) - np.asarray(ours, np.float64)
    num = len(change) + 2
    sides = np.maximum(-change, 0), np.maximum(change, 0)
    lost, gained = ((np.sum(one) + 1) / num for one in sides)
    squares = sum((np.sum(one**2) + 1) / num for one in sides)
    error = math.sqrt((squares - (gained - lost) ** 2) / num)
    middle, half_width = float(gained - lost), float(scipy.stats.norm.ppf((1 + level) / 2)) * error
    return max(-1.0, middle - half_width), min(1.0, middle + half_width)


class TwoWay(NamedTuple):
    """A difference of two ensembles' mean scores, and the variances that it has.

    Attributes:
        difference: of the second's score from the first's.
        of_examples: variance by the choice of the examples.
        of_members: variance by the choice of the members, of each ensemble.
        num_examples: N.
        num_members: of each ensemble.
    """

    difference: float
    of_examples: float
    of_members: tuple[float, float]
    num_examples: int
    num_members: tuple[int, int]

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Self:
        """Reads the difference of a comparison.

        Args:
            section: `recipe` of a comparison, which can be told.
        """
        return cls(**{name: section[name] for name in cls._fields})

    @property
    def error(self) -> float:
        """Standard error over members and examples."""
        return math.sqrt(self.of_examples + sum(self.of_members))


class LeaveOneOut(NamedTuple):
    """What a score is the mean of.

    Attributes:
        whole: `[N]`, of the ensemble.
        less: `[M, N]`, of the ensemble without each of its members.
    """

    whole: Floats
    less: Floats


def two_way(ours: LeaveOneOut, theirs: LeaveOneOut) -> TwoWay:
    """Takes a difference apart by members and examples.

    The variance over members is that of a jackknife, which leaves them out one after the other
    (Efron and Stein 1981, "The jackknife estimate of variance"). It holds the members' part that
    differs from example to example, which is in the variance over examples too, and is taken off
    (Cameron, Gelbach and Miller 2011, "Robust inference with multiway clustering").

    Args:
        ours: terms of one ensemble of two members at least, on N examples, at least two.
        theirs: terms of another one, on the same examples.
    """
    differences = theirs.whole - ours.whole
    num_examples = len(differences)
    return TwoWay(
        float(np.mean(differences)),
        float(differences.var(ddof=1)) / num_examples,
        (_of_members(ours.less), _of_members(theirs.less)),
        num_examples,
        (len(ours.less), len(theirs.less)),
    )


def _of_members(less: Floats) -> float:
    """Variance by members alone, from terms `[M, N]` without each of them."""
    num_members, num_examples = less.shape
    moved = (num_members - 1) * (less - less.mean(axis=0))
    scale = num_members * (num_members - 1)
    both = float(np.sum(moved.mean(axis=1) ** 2)) / scale
    by_example = float(np.sum(moved.var(axis=1, ddof=1))) / num_examples / scale
    return max(both - by_example, 0.0)


def two_way_interval(found: TwoWay) -> Interval:
    """95% interval over members and examples.

    Student's t, on degrees of freedom by Satterthwaite (1946).

    Args:
        found: by `two_way`.
    """
    half_width = _quantile(found, _TAIL) * found.error
    return found.difference - half_width, found.difference + half_width


def could_see(found: TwoWay) -> float:
    """A difference that would have been seen with a probability of `POWER`.

    Seen: the interval over members and examples leaves out zero.

    Args:
        found: by `two_way`.
    """
    return (_quantile(found, _TAIL) + _quantile(found, POWER)) * found.error


def _quantile(found: TwoWay, level: float) -> float:
    parts = [(found.of_examples, found.num_examples)]
    parts += zip(found.of_members, found.num_members, strict=True)
    spread = sum(variance**2 / (number - 1) for variance, number in parts)
    degrees = found.error**4 / spread if spread > 0 else math.inf
    return float(scipy.stats.t.ppf(level, degrees))


class Needed(NamedTuple):
    """About how much it takes to see a difference with a probability of `POWER`.

    Attributes:
        examples: with these members; None: no number is enough.
        members: of each ensemble, with these examples; None: no number is enough.
        times: how many times as many, of examples and members both.
    """

    examples: int | None
    members: int | None
    times: float


def needed(found: TwoWay, size: float, fewest: int = 3) -> Needed:
    """How many test examples or members it takes to see a difference of a given size.

    Args:
        found: by `two_way`, of ensembles of the same kind.
        size: of the difference, positive.
        fewest: members that are enough to say anything.
    """
    quantiles = [float(scipy.stats.norm.ppf(one)) for one in (_TAIL, POWER)]
    wanted = (size / sum(quantiles)) ** 2
    members = sum(found.of_members)
    for_examples, for_members = wanted - members, wanted - found.of_examples
    many = max(found.num_members)
    return Needed(
        math.ceil(found.num_examples * found.of_examples / for_examples)
        if for_examples > 0
        else None,
        max(fewest, math.ceil(many * members / for_members)) if for_members > 0 else None,
        found.error**2 / wanted,
    )
