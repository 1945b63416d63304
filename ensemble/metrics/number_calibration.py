"""Calibration of predicted numbers on data that trained and stopped nothing.

The PIT says whether the predictive distributions are right, one factor corrects their scale, and
conformal intervals hold targets as often as they say whatever the distributions are like.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

FACTORS = (0.05, 20.0)
"""The range in which a factor of the scale is sought."""
_NUM_TRIED = 41  # Of a mixture's NLL, which may have more than one minimum.
NUM_PIT_BINS = 10


def fit_scale(nll: Callable[[float], float]) -> float:
    """Factor of the scale of the lowest NLL, on the calibration split.

    Args:
        nll: mean NLL of the distributions whose scale is multiplied by a factor, nats.

    Returns:
        The factor within `FACTORS`; above 1 where the predictor was too sure.

    Raises:
        ValueError: no factor gives a finite NLL, or the best lies outside `FACTORS`, as where so
            few examples determine none.
    """
    low, high = np.log(FACTORS)
    tried = np.linspace(float(low), float(high), _NUM_TRIED)
    values = np.array([nll(float(np.exp(one))) for one in tried])
    values = np.where(np.isfinite(values), values, np.inf)
    best = int(values.argmin())
    if not np.isfinite(values[best]):
        raise ValueError("no factor of the scale gives a finite NLL")
    if best in (0, len(tried) - 1):
        raise ValueError(
            f"so few examples determine no factor of the scale within {FACTORS[0]:g}.."
            f"{FACTORS[1]:g}"
        )
    found = scipy.optimize.minimize_scalar(
        lambda one: nll(float(np.exp(one))), bounds=tried[[best - 1, best + 1]], method="bounded"
    )
    return 1.0 if nll(1.0) - found.fun <= 1e-12 else float(np.exp(found.x))


def pit_uniformity(pit: ArrayLike) -> dict[str, Any]:
    """Whether the PIT is uniform, as it is where predictive distributions are right.

    The distance is that of Kolmogorov and Smirnov, and the p-value is exact for independent
    examples and continuous targets (Dawid 1984 for the PIT; `scipy.stats.kstest`).

    Args:
        pit: `[N]`, the predictive CDF at the targets.

    Returns:
        `counts` in ten bins of equal width; `distance`, the largest difference between the share of
        examples below a value and that value, 0..1; `p_value`.
    """
    pit = np.clip(np.asarray(pit, np.float64), 0, 1)
    found = scipy.stats.kstest(pit, "uniform")
    counts, _ = np.histogram(pit, bins=NUM_PIT_BINS, range=(0, 1))
    return {
        "counts": counts.tolist(),
        "distance": float(found.statistic),
        "p_value": float(found.pvalue),
    }


def conformal_quantile(scores: ArrayLike, level: float) -> float:
    """The ceil((N + 1) level)-th smallest of N scores; infinite where N is too small for the level.

    The score of a new example is at most this with a probability of at least `level`, if it is
    exchangeable with the N (Vovk et al. 2005).
    """
    ordered = np.sort(np.asarray(scores, np.float64))
    rank = int(np.ceil((len(ordered) + 1) * level - 1e-9))
    return float(ordered[rank - 1]) if rank <= len(ordered) else float("inf")
