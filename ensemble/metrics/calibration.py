"""What is fitted on a calibration split, which trained and stopped nothing."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble.metrics.interval import Estimate, interval
from ensemble.metrics.metric import LEVEL

RANGE = (0.05, 20.0)
"""Range of temperatures, and of factors of a scale."""
MIN_ERRORS = 5
MIN_ROWS = 30
"""Wrong (and right) predictions of classes, or rows of numbers, that determine a factor."""
_NUM_TRIED = 25  # A mixture's NLL may have several minima.
_FOLDS = 5
_REPEATS = 4
CONTAINED = 0.9
"""Share of targets that conformal sets and intervals are to contain."""


def fit_scale(p: Any, y: NDArray) -> float | None:
    """The factor for `p.scaled` with the lowest NLL: a temperature, or a factor of the scale.

    Guo et al. 2017, section 4.2. It is above 1 if the predictions are overconfident.

    Args:
        p: `Predictive` of the calibration split.
        y: Targets [N].

    Returns:
        The factor; None if these rows determine none within `RANGE`, such as if all are predicted
        rightly.
    """

    def nll(log_factor: float) -> float:
        return float(-np.mean(p.scaled(math.exp(log_factor)).log_prob(y)))

    tried = np.linspace(math.log(RANGE[0]), math.log(RANGE[1]), _NUM_TRIED)
    values = np.nan_to_num([nll(one) for one in tried], nan=np.inf, posinf=np.inf)
    best = int(np.argmin(values))
    if not np.isfinite(values[best]) or best in (0, len(tried) - 1):
        return None
    import scipy.optimize  # Half a second, of those that calibrate alone.

    found = scipy.optimize.minimize_scalar(
        nll, bounds=tried[[best - 1, best + 1]], method="bounded", options={"xatol": 1e-6}
    )
    return 1.0 if nll(0.0) - found.fun <= 1e-12 else float(math.exp(found.x))


def scale_gain(p: Any, y: NDArray) -> Estimate | None:
    """Change of the NLL that a factor makes on calibration rows that did not fit it, nats.

    It decides whether a factor is used, so that the test split decides nothing that it scores. It
    averages four divisions into five folds: by a single one the sign of a small gain is chance.

    Args:
        p: `Predictive` of the calibration split.
        y: Targets [N].

    Returns:
        NLL with the factor less NLL without; None if too few rows determine a factor.
    """
    fewest, least = len(y), MIN_ROWS
    if p.kind == "classes":
        errors = int(np.sum(p.labels != y))
        fewest, least = min(errors, fewest - errors), MIN_ERRORS
    if fewest < least:
        return None
    change = np.zeros(len(y))
    for repeat in range(_REPEATS):
        fold = np.random.default_rng(repeat).permutation(len(y)) % _FOLDS
        for k in range(_FOLDS):
            inside = fold == k
            factor = fit_scale(p.rows(~inside), y[~inside])
            if factor is None:
                return None
            part = p.rows(inside)
            change[inside] += part.log_prob(y[inside]) - part.scaled(factor).log_prob(y[inside])
    return interval(change / _REPEATS)


def pit_uniformity(pit: ArrayLike) -> tuple[float, float]:
    """Kolmogorov and Smirnov's distance of a PIT [N] from uniform, and its p-value (Dawid 1984)."""
    import scipy.stats  # As in `fit_scale`.

    found = scipy.stats.kstest(np.clip(pit, 0, 1), "uniform")
    return float(found.statistic), float(found.pvalue)


# Conformal sets and intervals.


class Outcome(NamedTuple):
    """Coverage of sets or intervals on other rows than those that they are fitted on.

    Attributes:
        level: Share of targets that they are to contain.
        threshold: Largest nonconformity score of what they contain.
        coverage: Share of targets that they contain.
        expected: Range of the coverage in 95% of pairs of splits.
        size: Mean number of classes of the sets, or width of the intervals.
    """

    level: float
    threshold: float
    coverage: float
    expected: tuple[float, float]
    size: float


def conformal(held: Any, test: Any, allow_empty: bool = False) -> Outcome | None:
    """Fits sets or intervals of 90% on one split, and finds their coverage on another.

    Sets of classes are those of Sadinle et al. 2019, intervals those of Romano et al. 2019.

    The expected coverage is beta-binomial (Angelopoulos and Bates 2021, arXiv:2107.07511). Sets
    that are never empty contain more than they have to, so their upper end is 1.

    Args:
        held: `Predictive` and targets [N] of the calibration split.
        test: The same of the test split.
        allow_empty: If False, the top class is in each set of classes.

    Returns:
        The outcome; None if there are too few rows to fit on.
    """
    import scipy.stats  # Slow: of evaluations alone.

    p, y = test
    number = len(held[1])
    rank = math.ceil((number + 1) * CONTAINED - 1e-9)
    if rank > number:
        return None
    threshold = float(np.sort(_surprise(*held))[rank - 1])
    surprise = _surprise(p, y)
    law = scipy.stats.betabinom(len(y), rank, number + 1 - rank)
    least, most = law.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2]) / len(y)
    if p.kind == "classes":
        covered = surprise <= threshold
        sizes = np.sum(-p.log_probs <= threshold, axis=-1)
        if not allow_empty:
            covered |= p.labels == y
            sizes = np.maximum(sizes, 1)
            most = 1.0
    else:
        low, high = p.central(CONTAINED)
        reach = np.maximum(threshold, (low - high) / 2)  # The lower end stays the lower one.
        covered = surprise <= reach
        sizes = high - low + 2 * reach
    expected = float(least), float(most)
    return Outcome(CONTAINED, threshold, float(covered.mean()), expected, float(sizes.mean()))


def _surprise(p, y: NDArray) -> NDArray:
    """Nonconformity scores [N] of targets."""
    if p.kind == "classes":
        return -p.log_prob(y)
    low, high = p.central(CONTAINED)
    return np.maximum(low - y, y - high)
