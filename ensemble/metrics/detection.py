"""Telling out-of-distribution inputs from others by a score; out-of-distribution is positive."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ensemble.metrics.abstention import error_interval
from ensemble.metrics.analytic_intervals import LEVEL, Interval, share_interval
from ensemble.metrics.checks import Floats

TRUE_POSITIVE_RATE = 0.95


class RankedScores(NamedTuple):
    """The scores of both sides in one order, the highest first, N + K in all.

    Attributes:
        order: index into in-distribution examples, then out-of-distribution ones.
        last: true where the next score is lower, or there is none: a threshold can lie there.
        num_in: N, number of in-distribution examples.
    """

    order: NDArray[np.intp]
    last: NDArray[np.bool_]
    num_in: int

    def rates(self, counts: NDArray | None = None) -> tuple[Floats, Floats, Floats]:
        """The ROC curve from (0, 0) to (1, 1).

        Args:
            counts: `[N + K]`, how often each example counts; None: once.

        Returns:
            False and true positive rates, and the precision (1 at the start, where nothing has been
            called positive), `[T + 1]` each for T distinct scores.
        """
        is_out = self.order >= self.num_in
        weights = np.ones(len(self.order)) if counts is None else counts[self.order]
        true = np.cumsum(weights * is_out)[self.last]
        called = np.cumsum(weights)[self.last]
        false = called - true
        with np.errstate(invalid="ignore"):  # 0/0: nothing with the highest scores was drawn.
            precision = np.where(called > 0, true / called, 1.0)
        return (
            np.append(0.0, false / false[-1]),
            np.append(0.0, true / true[-1]),
            np.append(1.0, precision),
        )

    def scores(self, counts: NDArray | None = None) -> dict[str, float]:
        """`auroc`, `aupr` and `fpr95`, as `detection_scores` returns them."""
        false_rate, true_rate, precision = self.rates(counts)
        return {
            "auroc": float(np.trapezoid(true_rate, false_rate)),
            "aupr": float(np.sum(np.diff(true_rate) * precision[1:])),
            "fpr95": float(false_rate[np.argmax(true_rate >= TRUE_POSITIVE_RATE - 1e-12)]),
        }

    def intervals(self) -> dict[str, Interval]:
        """95% intervals over both sides' examples, of `auroc` and `fpr95`.

        That of `auroc` has the variance of DeLong, DeLong and Clarke-Pearson (1988). That of
        `fpr95` holds the rate at the threshold that would catch 95% of all such inputs: the
        threshold lies between two of the scores by a binomial law, and the rate at each of them has
        an exact interval; with fewer than some 85 out-of-distribution examples its upper end is 1.
        """
        return {"auroc": self.auroc_interval(), "fpr95": self._fpr95_interval()}

    def auroc_interval(self, level: float = LEVEL) -> Interval:
        """The interval of the area under the ROC curve; both sides have two examples or more."""
        weight = 1 / min(self.num_in, len(self.order) - self.num_in)
        return share_interval(self.scores()["auroc"], self.auroc_variance(), weight, level)

    def auroc_variance(self) -> float:
        """The variance of the area under the ROC curve over examples, DeLong's."""
        groups = np.cumsum(np.append(False, self.last[:-1]))
        is_out = self.order >= self.num_in

        def share(of: NDArray) -> tuple[Floats, Floats]:
            """By group of equal scores, a side's share that scores higher, and that in it."""
            here = np.bincount(groups[of], minlength=groups[-1] + 1) / of.sum()
            return np.cumsum(here) - here, here

        higher_in, here_in = share(~is_out)
        higher_out, here_out = share(is_out)
        beaten = (1 - higher_in - here_in / 2)[groups[is_out]]
        beating = (higher_out + here_out / 2)[groups[~is_out]]
        return _variance(beaten) + _variance(beating)

    def _fpr95_interval(self) -> Interval:
        is_out = self.order >= self.num_in
        num_out = len(is_out) - self.num_in
        flagged = np.append(0, np.cumsum(~is_out)[self.last])  # In-distribution, by threshold.
        caught = np.append(0, np.cumsum(is_out)[self.last])
        # Both sides are independent draws, so each may miss with half of what is allowed.
        tail = (1 - math.sqrt(LEVEL)) / 2
        missed = 1 - TRUE_POSITIVE_RATE
        below = np.arange(num_out + 1)
        law = special.bdtr(below, num_out, missed)  # P(at most so many lie below the threshold).
        fewest, most = int(np.argmax(law > tail)), int(np.argmax(law >= 1 - tail))
        at_high = flagged[np.searchsorted(caught, num_out - most, side="left")]
        low = error_interval(int(at_high), self.num_in, math.sqrt(LEVEL))[0]
        if not fewest:
            return (low, 1.0)
        at_low = flagged[np.searchsorted(caught, num_out - fewest + 1, side="left")]
        return (low, error_interval(int(at_low), self.num_in, math.sqrt(LEVEL))[1])


def _variance(values: Floats) -> float:
    """The variance of a mean of independent draws `[N]`; 0 of one."""
    return float(np.var(values)) / max(len(values) - 1, 1)


def rank(scores_in: ArrayLike, scores_out: ArrayLike) -> RankedScores:
    """Sorts both sides' scores together.

    Args:
        scores_in: `[N]` of in-distribution examples, N > 0; not NaN.
        scores_out: `[K]` of out-of-distribution examples, K > 0; not NaN.
    """
    sides = [np.asarray(side, np.float64) for side in (scores_in, scores_out)]
    for side, name in zip(sides, ("scores_in", "scores_out"), strict=True):
        if side.ndim != 1 or not len(side) or np.isnan(side).any():
            raise ValueError(f"{name} of shape {side.shape} must be [N], not empty, without NaN")
    both = np.concatenate(sides)
    order = np.argsort(-both, kind="stable")
    ranked = both[order]
    return RankedScores(order, np.append(ranked[1:] != ranked[:-1], True), len(sides[0]))


def detection_scores(scores_in: ArrayLike, scores_out: ArrayLike) -> dict[str, float]:
    """How well a score tells out-of-distribution inputs (Hendrycks & Gimpel 2017, 1610.02136).

    Args:
        scores_in: `[N]` of in-distribution examples; ties are allowed.
        scores_out: `[K]` of out-of-distribution examples, which should be higher.

    Returns:
        `auroc`: area under the ROC curve, the probability that an out-of-distribution example has
        the higher score, ties counting half; `aupr`: average precision, sum over thresholds of
        (recall step) * precision; `fpr95`: the false positive rate at the highest threshold whose
        true positive rate is at least 95%. All in 0..1.
    """
    return rank(scores_in, scores_out).scores()
