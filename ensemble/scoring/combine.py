"""How terms of examples become a score: its value, its interval, and its difference from another.

Terms are [N], or [N, 2] where a rule looks at a second column. Every interval is over examples: it
says what another test set might have said of the same members.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics import censoring, grouped, jackknife
from ensemble.metrics.abstention import error_interval
from ensemble.metrics.analytic_intervals import (
    LEVEL,
    Interval,
    bounded_interval,
    influence_interval,
    mean_interval,
)
from ensemble.metrics.checks import Floats
from ensemble.metrics.tails import has_heavy_tail

Groups = Literal["share", "positive", "signed"]
"""What a score can be, which decides how its interval over groups is made."""


class Combine(Protocol):
    """A rule.

    Attributes:
        over_groups: what the score can be.
    """

    @property
    def over_groups(self) -> Groups: ...

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        """The score; with counts [N], of examples that occur so often; NaN where it is unknown."""

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        """Its interval; None where it is not known."""

    def difference(self, ours: Floats, theirs: Floats, level: float = LEVEL) -> Interval | None:
        """The interval of the second score less the first, of two ensembles on the same
        examples."""

    def change(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        """The same of one ensemble and what is made of it or of its inputs, over groups if any.

        It is not known where the terms of the change do not allow it; that of two ensembles is
        told with fewer degrees of freedom.
        """

    def ratio(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        """Does what `change` does, for the second score over the first."""


@dataclass(frozen=True)
class Mean:
    """The mean of the terms.

    Attributes:
        low: the least that a term can be, where it is bounded.
        high: the largest.
        tail: what terms must be for an interval: "finite"; "light", finite and of a variance;
            "any": the ends of an interval are infinite where a term is.
        fewest: what the second column must sum to: fewer such rows do not tell the others.
        over_groups: as of `Combine`.
    """

    low: float | None = None
    high: float | None = None
    tail: Literal["finite", "light", "any"] = "finite"
    fewest: int = 0
    over_groups: Groups = "positive"

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        return _mean(main(terms), counts)

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        if not len(terms) or (self.fewest and terms[:, 1].sum() < self.fewest):
            return None
        return self._of_mean(main(terms), level, self.low, self.high)

    def difference(self, ours: Floats, theirs: Floats, level: float = LEVEL) -> Interval | None:
        return jackknife.mean_difference_interval(main(ours), main(theirs), level=level)

    def change(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        with np.errstate(invalid="ignore"):  # Of two infinite terms.
            change = main(theirs) - main(ours)
        if self.low is None or self.high is None:
            return self._of_mean(change, level, groups=groups)
        span = self.high - self.low
        return self._of_mean(change, level, -span, span, groups)

    def ratio(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        first, second = self.value(ours), self.value(theirs)
        if not (math.isfinite(first) and math.isfinite(second) and first > 0 and second > 0):
            return None
        found = self._of_mean(main(theirs) / second - main(ours) / first, level, groups=groups)
        if found is None:
            return None
        return second / first * math.exp(found[0]), second / first * math.exp(found[1])

    def _of_mean(
        self,
        values: Floats,
        level: float,
        low: float | None = None,
        high: float | None = None,
        groups: NDArray | None = None,
    ) -> Interval | None:
        """The interval of a mean of values [N], over their groups if there are any."""
        if self.tail != "any" and not np.isfinite(values).all():
            return None
        if self.tail == "light" and has_heavy_tail(values):
            return None
        if groups is not None:
            return grouped.mean_over_groups(values, groups, level)
        if low is not None and high is not None:
            return bounded_interval(values, low, high, level)
        return mean_interval(values, level)


@dataclass(frozen=True)
class RootMean:
    """The root of the mean of the terms, which are squares.

    To first order a root of a mean moves by what the mean does, over twice the root.
    """

    over_groups: ClassVar[Groups] = "positive"
    _of_squares: ClassVar[Mean] = Mean(tail="light")

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        return math.sqrt(_mean(terms, counts))

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        found = self._of_squares.interval(terms, level)
        return None if found is None else (math.sqrt(max(found[0], 0)), math.sqrt(found[1]))

    def difference(self, ours: Floats, theirs: Floats, level: float = LEVEL) -> Interval | None:
        roots = self.value(ours), self.value(theirs)
        if not all(roots):
            return None
        pair = (one / (2 * r) + r / 2 for one, r in zip((ours, theirs), roots, strict=True))
        return jackknife.mean_difference_interval(*pair, level=level)

    def change(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        first, second = self.value(ours), self.value(theirs)
        if not all(math.isfinite(one) and one > 0 for one in (first, second)):
            return None
        scaled = ours / (2 * first), theirs / (2 * second)
        found = self._of_squares.change(*scaled, level, groups)
        middle = (second - first) / 2  # The mean of that change is half of the difference.
        return None if found is None else (found[0] + middle, found[1] + middle)

    def ratio(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        first, second = _mean(ours), _mean(theirs)
        if not (math.isfinite(first) and math.isfinite(second) and first > 0 and second > 0):
            return None
        scaled = ours / (2 * first), theirs / (2 * second)
        found = self._of_squares.change(*scaled, level, groups)
        ratio = math.sqrt(second / first)
        return None if found is None else (ratio * math.exp(found[0]), ratio * math.exp(found[1]))


class _WithoutRatio:
    """A score whose ratio nobody asks for."""

    def ratio(self, *_: object) -> Interval | None:
        return None


@dataclass(frozen=True)
class Share(_WithoutRatio):
    """The share of the examples whose term is 1, and not 0."""

    over_groups: ClassVar[Groups] = "share"

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        return _mean(terms, counts)

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        """Clopper and Pearson 1934: it says something also where all or no terms are 1."""
        return error_interval(int(terms.sum()), len(terms), level) if len(terms) else None

    def difference(self, ours: Floats, theirs: Floats, level: float = LEVEL) -> Interval | None:
        return jackknife.share_difference_interval(ours, theirs, level=level)

    def change(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        return Mean(0, 1).change(ours, theirs, level, groups)


@dataclass(frozen=True)
class Coverage(Share):
    """The share of targets that central intervals of a level hold.

    Where some targets are only bounded below, terms are [N, 2]: the PIT at targets or bounds, and
    whether the target is known. The share is then that of the PIT's distribution by Kaplan and
    Meier, as far as this reaches.
    """

    level: float = 0.9

    @property
    def tails(self) -> tuple[float, float]:
        """The places where the interval begins and ends in the distribution."""
        return (1 - self.level) / 2, (1 + self.level) / 2

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        if terms.ndim == 1:
            return super().value(terms, counts)
        if not terms[:, 1].any():
            return math.nan
        repeated = terms if counts is None else np.repeat(terms, counts, axis=0)
        curve = censoring.kaplan_meier(repeated[:, 0], repeated[:, 1] == 0)
        found = curve.share(*self.tails)
        return math.nan if found is None else found

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        """Holds the true share at least so often (Clopper and Pearson 1934 for either bound)."""
        if terms.ndim == 1:
            return super().interval(terms, level)
        number = len(terms)
        surely, perhaps = (round(one * number) for one in self.bounds(terms))
        return error_interval(surely, number, level)[0], error_interval(perhaps, number, level)[1]

    def bounds(self, terms: Floats) -> tuple[float, float]:
        """Between which the share lies wherever the targets are that are only bounded."""
        pit, known = terms[:, 0], terms[:, 1] == 1
        low, high = self.tails
        num_held = int(((pit >= low) & (pit <= high) & known).sum())
        num_perhaps = num_held + int(((pit <= high) & ~known).sum())
        return num_held / len(terms), num_perhaps / len(terms)

    def difference(self, ours: Floats, theirs: Floats, level: float = LEVEL) -> Interval | None:
        return super().difference(ours, theirs, level) if ours.ndim == 1 else None

    def change(
        self, ours: Floats, theirs: Floats, level: float = LEVEL, groups: NDArray | None = None
    ) -> Interval | None:
        return super().change(ours, theirs, level, groups) if ours.ndim == 1 else None


@dataclass(frozen=True)
class Order(_WithoutRatio):
    """A score of examples in the order of their confidence.

    Terms are [N, 2]: a confidence, and what is scored, such as whether the prediction is right.
    Functions get both, the most confident first.

    Attributes:
        score: the value.
        influence: `[N]`, by how much a further such example would move the score, times N; None:
            the score has no interval, such as a calibration error, which chance raises by more than
            it varies.
        weight: by how much one example can move the score of N; 1 / N unless it is given.
        paired: `[N]`, shares whose mean, times the second of what is returned, is the score; None:
            the score of two ensembles has no interval of the difference.
        over_groups: as of `Combine`.
    """

    score: Callable[[Floats, Floats], float]
    influence: Callable[[Floats, Floats], Floats] | None = None
    weight: Callable[[int], float] = lambda number: 1 / number
    paired: Callable[[Floats, Floats], tuple[Floats, float]] | None = None
    over_groups: Groups = "positive"

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        if counts is None:
            return self.score(*_ordered(terms)[1])
        order, _ = _ordered(terms)
        return self.score(*terms[np.repeat(order, counts[order])].T)

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        if self.influence is None:
            return None
        ordered, weight = _ordered(terms)[1], self.weight(len(terms))
        return influence_interval(self.score(*ordered), self.influence(*ordered), weight, level)

    def difference(self, ours: Floats, theirs: Floats, level: float = LEVEL) -> Interval | None:
        if self.paired is None:
            return None
        found = []
        for terms in (ours, theirs):
            (order, ordered), values = _ordered(terms), np.empty(len(terms))
            values[order], factor = self.paired(*ordered)
            found.append(values)
        low, high = jackknife.share_difference_interval(*found, level=level)
        return low * factor, high * factor

    def change(self, *_: object) -> Interval | None:
        return None


def over_groups(
    combine: Combine, terms: Floats, groups: NDArray, level: float = LEVEL
) -> Interval | None:
    """The least interval that holds that over examples, and that over groups of these.

    Args:
        combine: of the score.
        terms: [N] or [N, 2].
        groups: [N], of each example.
        level: of the interval.

    Returns:
        None where either is not known.
    """
    found = combine.interval(terms, level)
    if found is None:
        return None
    ends = grouped.group_interval(
        lambda counts: combine.value(terms, counts), groups, combine.over_groups, level
    )
    if ends is None:
        return None
    low, high = min(ends[0], found[0]), max(ends[1], found[1])
    least = -math.inf if combine.over_groups == "signed" else 0.0
    most = 1.0 if combine.over_groups == "share" else math.inf
    return max(low, least), min(high, most)


def main(terms: Floats) -> Floats:
    """What is combined, without the column that a gate looks at."""
    return terms if terms.ndim == 1 else terms[:, 0]


def _mean(values: Floats, counts: NDArray | None = None) -> float:
    if not len(values):
        return math.nan
    if counts is None:
        return float(np.mean(values))
    occurs = counts > 0  # An infinite term may not.
    return float(values[occurs] @ counts[occurs] / counts.sum())


_newest: list[tuple[Floats, NDArray, Floats]] = []
"""The newest terms that were put into order, with what `_ordered` returned."""


def _ordered(terms: Floats) -> tuple[NDArray, Floats]:
    """Examples [N], the most confident first, and their terms [2, N] in this order.

    Several scores of a view follow each other that have the same terms, so the newest are kept.
    """
    if not (_newest and _newest[0][0] is terms):
        order = np.argsort(-terms[:, 0], kind="stable")
        _newest[:] = [(terms, order, terms[order].T)]
    _, order, ordered = _newest[0]
    return order, ordered
