"""What is fitted on a calibration split, which trained and stopped nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble.metrics.interval import Estimate, interval

RANGE = (0.05, 20.0)
"""Range of temperatures, and of factors of a scale."""
MIN_ERRORS = 5
MIN_ROWS = 30
"""Wrong (and right) predictions of classes, or rows of numbers, that determine a factor."""
_NUM_TRIED = 25
_FOLDS = 5
_REPEATS = 4


def can_fit_scale(p: Any, y: NDArray) -> bool:
    """Whether there are enough rows to tell if a factor helps."""
    if p.kind != "classes":
        return p.can_scale and len(y) >= MIN_ROWS
    errors = int(np.sum(p.labels != y))
    return min(errors, len(y) - errors) >= MIN_ERRORS


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
    if not can_fit_scale(p, y):
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
