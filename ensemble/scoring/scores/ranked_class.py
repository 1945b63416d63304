"""How well the examples of one class are told from all others by its probability."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble.errors import UserError, shown
from ensemble.metrics.analytic_intervals import LEVEL, Interval
from ensemble.metrics.checks import Floats
from ensemble.metrics.detection import RankedScores, rank
from ensemble.scoring.combine import Groups
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView

FEW_POSITIVES = 15
"""Examples of the class; an average precision of fewer has no interval."""


@dataclass(frozen=True)
class Ranked:
    """A score of the order of examples, one side of which is to come first.

    Terms are [N, 2]: what they are ordered by, and whether they are of the class.

    Attributes:
        name: of `RankedScores.scores`.
    """

    name: str
    over_groups: ClassVar[Groups] = "share"

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        is_of_class = terms[:, 1] == 1
        counts = np.ones(len(terms)) if counts is None else counts
        others, of_class = counts[~is_of_class], counts[is_of_class]
        if not (others.sum() and of_class.sum()):
            return math.nan
        both = np.concatenate([others, of_class])
        return _ranked(terms).scores(both)[self.name]

    def interval(self, terms: Floats, level: float = LEVEL) -> Interval | None:
        num_positive = int(terms[:, 1].sum())
        if min(num_positive, len(terms) - num_positive) < 2:
            return None
        if self.name == "auroc":
            return _ranked(terms).auroc_interval(level)
        return average_precision_interval(_ranked(terms), level)

    def _untold(self, *_: object) -> None:
        return None

    difference = change = ratio = _untold


def _ranked(terms: Floats) -> RankedScores:
    is_of_class = terms[:, 1] == 1
    return rank(terms[~is_of_class, 0], terms[is_of_class, 0])


def average_precision_interval(ranked: RankedScores, level: float = LEVEL) -> Interval | None:
    """An interval of the average precision, on the scale of its log odds.

    Its standard error is the larger of two: that of as many independent shares as there are
    positive examples (Boyd, Eng and Page 2013, "Area under the precision-recall curve: point
    estimates and confidence intervals"), and that of the influence of each example. Quantiles are
    of Student's t with one degree of freedom less than there are positive examples.

    Args:
        ranked: positive examples are the second side.
        level: of the interval.

    Returns:
        low and high; None with fewer than `FEW_POSITIVES` positive examples.
    """
    is_positive = ranked.order >= ranked.num_in
    num_positive = int(is_positive.sum())
    if num_positive < FEW_POSITIVES:
        return None
    ends = np.flatnonzero(ranked.last)
    group = np.cumsum(np.append(False, ranked.last[:-1]))
    true, called = np.cumsum(is_positive)[ends].astype(float), ends + 1.0
    positives = np.diff(true, prepend=0.0)
    precision = true / called
    average = float((positives * precision).sum() / num_positive)
    # What one more example adds: its own precision, and what it makes of that of all below it.
    if_positive = np.cumsum((positives / called)[::-1])[::-1]
    if_any = np.cumsum((positives * true / called**2)[::-1])[::-1]
    own = is_positive * (precision[group] + if_positive[group] - average)
    influence = (own - if_any[group]) / num_positive
    share = min(max(average, 0.5 / num_positive), 1 - 0.5 / num_positive)
    spread = share * (1 - share)
    error = max(1 / math.sqrt(num_positive * spread), math.sqrt((influence**2).sum()) / spread)
    reach = scipy.stats.t.ppf((1 + level) / 2, num_positive - 1) * error
    odds = scipy.special.logit(share)
    low, high = (float(scipy.special.expit(odds + sign * reach)) for sign in (-1, 1))
    return min(low, average), max(high, average)


def class_of(name: str, class_names: Sequence[str]) -> int:
    """The number of a class, by its name or its number.

    Raises:
        UserError: there is none.
    """
    if name in class_names:
        return list(class_names).index(name)
    if name.isdecimal() and int(name) < len(class_names):
        return int(name)
    known = ", ".join(map(shown, class_names[:10]))
    raise UserError(
        f"--scores: {shown(name)} is none of the {len(class_names)} classes; choose from "
        f"{known}{', ...' if len(class_names) > 10 else ''}"
    )


def _is_of_two(view: ClassView) -> bool:
    return view.log_probs.shape[1] == 2


def sides_of(view: ClassView, number: int) -> tuple[Floats, Floats]:
    """The log odds of a class, of the other examples and of its own."""
    odds, is_of_class = ranked_by(view, number).T
    return odds[is_of_class == 0], odds[is_of_class == 1]


def ranked_by(view: ClassView, number: int) -> Floats:
    """[N, 2], the log odds of a class, and whether it is the label."""
    others = np.delete(view.log_probs, number, axis=1)
    with np.errstate(invalid="ignore"):
        odds = view.log_probs[:, number] - logsumexp(others, axis=1)
    return np.stack([odds, view.labels == number], axis=1)


_HOW: dict[str, Any] = {
    "of": ClassView,
    "unit": "share",
    "better": "higher",
    "settings": class_of,
    "takes": "CLASS",
}
"""What both scores have in common."""


@score(
    **_HOW,
    title="AUROC",
    combine=lambda number: Ranked("auroc"),
    each=lambda view: {"auroc": 1} if _is_of_two(view) else {},  # Of both it is the same.
)
def auroc(view, number):
    """Probability that an example of the class has more of it than another (Bamber 1975)."""
    return ranked_by(view, number)


@score(
    **_HOW,
    title="AUPRC",
    combine=lambda number: Ranked("aupr"),
    each=lambda view: {"auprc:0": 0, "auprc:1": 1} if _is_of_two(view) else {},
)
def auprc(view, number):
    """Average precision: precision at each threshold, weighted by the step of recall there."""
    return ranked_by(view, number)
