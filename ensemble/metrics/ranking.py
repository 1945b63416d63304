"""Metrics of an order: rows ranked by a score. Most return terms [N]: value + influence function.

Rows of equal score share the mean over their possible orders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_COVERAGE = 0.8


def aurc(confidence: NDArray, hit: ArrayLike) -> Floats:
    """Area under the risk-coverage curve (Geifman et al. 2019, arXiv:1805.08206, eq. 1).

    The mean over k = 1..N of the share of errors among the k most confident rows.

    Args:
        confidence: [N]; higher is more certain.
        hit: [N] in 0 to 1.
    """
    order, ordered, hit = _by_confidence(confidence, hit)
    by_rank = 1 / np.arange(1, len(hit) + 1)
    error = mean_of_ties(ordered, 1 - hit)
    value = np.mean(np.cumsum(error) * by_rank)
    log_share = mean_of_ties(ordered, np.cumsum(by_rank[::-1])[::-1])
    behind = mean_of_ties(ordered, np.cumsum((error * by_rank)[::-1])[::-1])
    risk = (1 - hit) * log_share
    return (value + risk - risk.mean() - behind + error.mean())[np.argsort(order)]


def at_coverage(confidence: NDArray, hit: ArrayLike) -> Floats:
    """Accuracy of the most confident 80% of the rows (El-Yaniv and Wiener 2010)."""
    order, ordered, hit = _by_confidence(confidence, hit)
    number = len(hit)
    count = int(np.ceil(_COVERAGE * number - 1e-9))  # .07 * 100 is slightly above 7.
    shared = mean_of_ties(ordered, hit)
    value = shared[:count].mean()
    reach = max(5, int(np.sqrt(number)))  # The threshold moves, too, to its neighbours' accuracy.
    at_threshold = shared[max(0, count - reach) : count + reach].mean()
    covered = mean_of_ties(ordered, (np.arange(number) < count).astype(np.float64))
    influence = covered * (hit - at_threshold) / _COVERAGE - (value - at_threshold)
    return (value + influence - influence.mean())[np.argsort(order)]


def auroc(score: NDArray, is_positive: ArrayLike) -> Floats:
    """Probability that a positive row has the higher score; ties count half.

    Its variance over rows is that of DeLong, DeLong and Clarke-Pearson 1988. Out-of-distribution
    inputs (Hendrycks and Gimpel 2017) and errors are positive. NaN if either side has no rows.

    Args:
        score: [N].
        is_positive: [N] bool.
    """
    positive = np.asarray(is_positive, bool)
    counts = np.where(positive, positive.sum(), (~positive).sum())  # Of the row's own side.
    if counts[:1] == len(score):
        return np.full(len(score), np.nan)
    below, above = (_share_below(np.sort(score[side]), score) for side in (~positive, positive))
    wins = np.where(positive, below, 1 - above)
    value = wins[positive].mean()
    return value + (wins - value) * len(score) / counts


def _share_below(ordered: Floats, values: Floats) -> Floats:
    """Share of sorted numbers that lie below each value; equal ones count half."""
    ends = np.searchsorted(ordered, values), np.searchsorted(ordered, values, "right")
    return (ends[0] + ends[1]) / 2 / len(ordered)


def average_precision(score: NDArray, is_positive: ArrayLike) -> np.float64:
    """Precision at each threshold, weighted by the step of recall there (AUPRC, AUPR).

    A value without terms. NaN without positive rows.

    Args:
        score: [N].
        is_positive: [N] bool.
    """
    _, ordered, positive = _by_confidence(score, is_positive)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    true = np.cumsum(positive)[ends]
    with np.errstate(invalid="ignore"):
        return np.float64((np.diff(true, prepend=0.0) * true / (ends + 1.0)).sum() / true[-1])


def fpr95(score: NDArray, is_positive: ArrayLike) -> float:
    """False positive rate at the highest threshold with a true positive rate of 95% or more.

    Hendrycks and Gimpel 2017, for out-of-distribution inputs. Both sides must have rows.

    Args:
        score: [N].
        is_positive: [N] bool.
    """
    positive = np.asarray(is_positive, bool)
    threshold = -np.quantile(-score[positive], 0.95, method="inverted_cdf")
    return float(np.mean(score[~positive] >= threshold))


def risk_coverage(confidence: NDArray, hit: ArrayLike) -> tuple[Floats, Floats]:
    """Share answered [N], and accuracy [N] among these, the most confident rows first."""
    _, ordered, hit = _by_confidence(confidence, hit)
    counts = np.arange(1, len(hit) + 1)
    return counts / len(hit), np.cumsum(mean_of_ties(ordered, hit)) / counts


def mean_of_ties(ordered: Floats, values: Floats) -> Floats:
    """Gives rows of equal key the mean [N] of their values; keys are sorted."""
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(starts, len(values)))
    return np.repeat(np.add.reduceat(values, starts) / counts, counts)


def _by_confidence(confidence: NDArray, hit: ArrayLike) -> tuple[NDArray, Floats, Floats]:
    """Rows [N], the most confident first, and both arguments in this order."""
    order = np.argsort(-confidence, kind="stable")
    return order, confidence[order], np.asarray(hit, np.float64)[order]
