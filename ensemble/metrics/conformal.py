"""Split-conformal sets of classes (Sadinle et al. 2019), intervals of numbers (Romano et al. 2019).

What is fitted on one split is a JSON document that applies to any other predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.metric import LEVEL

Fit = Mapping[str, Any]
"""`level`, the share of targets to contain; `threshold`, the largest nonconformity score of what is
contained; `num_rows` and `rank`, how many rows there were, and which of their scores it is."""


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


def fit(p: Any, y: NDArray, level: float = 0.9) -> Fit | None:
    """Fits the threshold of sets or intervals.

    Args:
        p: `Predictive` of the calibration split.
        y: Targets [N] of it.
        level: Share of targets that they are to contain.

    Returns:
        The fit, JSON-ready; None if there are too few rows.
    """
    rank = math.ceil((len(y) + 1) * level - 1e-9)
    if rank > len(y):
        return None
    if p.kind == "classes":
        scores = -p.log_prob(y)  # Surprise.
    else:
        low, high = p.central(level)
        scores = np.maximum(low - y, y - high)
    threshold = float(np.sort(scores)[rank - 1])
    return {"level": level, "threshold": threshold, "num_rows": len(y), "rank": rank}


def apply(fitted: Fit, p: Any, allow_empty: bool = False) -> NDArray:
    """Makes sets or intervals of predictions.

    Args:
        fitted: By `fit`.
        p: `Predictive` of N rows, of the same kind.
        allow_empty: If False, the top class is in each set of classes.

    Returns:
        Sets of classes, bool [N, C]; of numbers the lower and upper ends [N, 2].
    """
    if p.kind == "classes":
        sets = np.asarray(-p.log_probs <= fitted["threshold"])
        if not allow_empty:
            sets[np.arange(len(sets)), p.labels] = True
        return sets
    low, high = p.central(fitted["level"])
    reach = np.maximum(fitted["threshold"], (low - high) / 2)  # The lower end stays the lower one.
    return np.stack([low - reach, high + reach], axis=-1)


def outcome(fitted: Fit, p: Any, y: NDArray, allow_empty: bool = False) -> Outcome:
    """Coverage of other targets.

    The expected coverage is beta-binomial (Angelopoulos and Bates 2021, arXiv:2107.07511). Sets
    that are never empty contain more than they have to, so their upper end is 1.

    Args:
        fitted: By `fit`.
        p: `Predictive` of the test split.
        y: Targets [N] of it.
        allow_empty: As of `apply`.
    """
    import scipy.stats  # Slow: of evaluations alone.

    made = apply(fitted, p, allow_empty)
    if p.kind == "classes":
        covered = made[np.arange(len(y)), y]
        sizes = made.sum(axis=-1)
    else:
        covered = (made[:, 0] <= y) & (y <= made[:, 1])
        sizes = made[:, 1] - made[:, 0]
    rank = fitted["rank"]
    law = scipy.stats.betabinom(len(y), rank, fitted["num_rows"] + 1 - rank)
    least, most = law.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2]) / len(y)
    is_fuller = p.kind == "classes" and not allow_empty
    expected = float(least), 1.0 if is_fuller else float(most)
    coverage, size = float(covered.mean()), float(sizes.mean())
    return Outcome(fitted["level"], fitted["threshold"], coverage, expected, size)
