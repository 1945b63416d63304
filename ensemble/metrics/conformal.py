"""Split-conformal sets of classes (Sadinle et al. 2019), intervals (Romano et al. 2019)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.metric import LEVEL


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


def outcome(
    held: tuple[Any, NDArray],
    test: tuple[Any, NDArray],
    level: float = 0.9,
    allow_empty: bool = False,
) -> Outcome | None:
    """Fits sets or intervals on one split, and finds their coverage on another.

    The expected coverage is beta-binomial (Angelopoulos and Bates 2021, arXiv:2107.07511). Sets
    that are never empty contain more than they have to, so their upper end is 1.

    Args:
        held: `Predictive` and targets [N] of the calibration split.
        test: The same of the test split.
        level: Share of targets that they are to contain.
        allow_empty: If False, the top class is in each set of classes.

    Returns:
        The outcome; None if there are too few rows to fit on.
    """
    import scipy.stats  # Slow: of evaluations alone.

    p, y = test
    number = len(held[1])
    rank = math.ceil((number + 1) * level - 1e-9)
    if rank > number:
        return None
    threshold = float(np.sort(_surprise(*held, level))[rank - 1])
    surprise = _surprise(p, y, level)
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
        low, high = p.central(level)
        reach = np.maximum(threshold, (low - high) / 2)  # The lower end stays the lower one.
        covered = surprise <= reach
        sizes = high - low + 2 * reach
    expected = float(least), float(most)
    return Outcome(level, threshold, float(covered.mean()), expected, float(sizes.mean()))


def _surprise(p: Any, y: NDArray, level: float) -> NDArray:
    """Nonconformity scores [N] of targets."""
    if p.kind == "classes":
        return np.asarray(-p.log_prob(y))
    low, high = p.central(level)
    return np.maximum(low - y, y - high)
