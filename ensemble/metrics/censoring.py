"""The PIT of targets of which some are right-censored: by the estimator of Kaplan and Meier.

The PIT of a censored target is known to be at least that of its bound. If the predictive
distributions are right, and being censored says nothing of a target but its bound, the estimated
distribution of the PIT is uniform, whatever the bounds are.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import kolmogorov

from ensemble.metrics.number_calibration import NUM_PIT_BINS

_FEW, _SHARE = 8, 0.05
"""With fewer values that are as large, or a lower share, the p-value does not look at a step."""
_LAST = 1 - 1e-12


class Curve(NamedTuple):
    """A distribution by Kaplan and Meier 1958.

    Attributes:
        values: `[K]`, ascending: where it steps.
        mass: `[K]`, the height of each step; the rest lies beyond `reach`.
        spread: `[K + 1]`, S (1 + n V) before the first and after each step: the survival, and V the
            variance of its logarithm by Greenwood 1926. It is 1 where nothing is censored.
        at_risk: `[K + 1]`, how many values are at least as large as each step, and as `reach`.
        reach: the largest value, up to which the distribution is known.
    """

    values: NDArray
    mass: NDArray
    spread: NDArray
    at_risk: NDArray
    reach: float

    def share(self, low: float, high: float) -> float | None:
        """The probability from `low` to `high`; None where the distribution is not known there."""
        if high > self.reach and self.mass.sum() < 1 - 1e-9:
            return None
        return float(self.mass[(self.values >= low) & (self.values <= high)].sum())


def kaplan_meier(values: ArrayLike, censored: ArrayLike) -> Curve:
    """Estimates the distribution of values of which some are lower bounds.

    Args:
        values: `[N]`.
        censored: `[N]` bool: the value is at least this.
    """
    values, censored = np.asarray(values, np.float64), np.asarray(censored, bool)
    steps, num_steps = np.unique(values[~censored], return_counts=True)
    num_at_risk = len(values) - np.searchsorted(np.sort(values), steps, side="left")
    kept = 1 - num_steps / num_at_risk
    survival = np.concatenate([[1.0], np.cumprod(kept)])
    is_last = num_steps == num_at_risk  # Nothing is left, and S V is a limit.
    variance = np.cumsum(num_steps / (num_at_risk * np.maximum(num_at_risk - num_steps, 1)))
    spread = survival[1:] * (1 + len(values) * variance)
    spread[is_last] = survival[:-1][is_last] * len(values) / num_at_risk[is_last]
    spread = np.concatenate([[1.0], spread])
    reach = values.max()
    at_risk = np.append(num_at_risk, np.sum(values == reach))
    return Curve(steps, -np.diff(survival), spread, at_risk, float(reach))


def pit_uniformity(pit: ArrayLike, censored: ArrayLike) -> dict[str, Any]:
    """Whether the PIT is uniform, where some targets are censored.

    Args:
        pit: `[N]`, the predictive CDF at the targets, or at the bounds of those that are censored.
        censored: `[N]` bool.

    Returns:
        `counts` that are expected in ten bins of equal width, of N; `distance`, the largest
        difference between the estimated distribution and the uniform one, as far as it reaches;
        `p_value`, by the band of Hall and Wellner 1980, which is about that of Kolmogorov where
        nothing is censored, and larger than exact where the estimate does not reach 1. Of two
        variances, the estimated one and that of a uniform PIT, it takes the larger.
    """
    pit = np.clip(np.asarray(pit, np.float64), 0, 1)
    curve = kaplan_meier(pit, censored)
    below = np.concatenate([[0.0], np.cumsum(curve.mass)])
    # The distribution is flat between steps, so that it differs most at their ends.
    ends = np.concatenate([curve.values, [min(curve.reach, 1.0)]])
    starts = np.concatenate([[0.0], curve.values])
    gaps = np.maximum(np.abs(below - ends), np.abs(below - starts))
    enough = min(max(_FEW, _SHARE * len(pit)), curve.at_risk[0])
    is_sure = curve.at_risk >= enough  # The variance of others is a guess.
    spread = np.maximum(curve.spread, _uniform_spread(pit, ends))
    furthest = np.max((gaps / spread)[is_sure])
    counts, _ = np.histogram(curve.values, NUM_PIT_BINS, (0, 1), weights=curve.mass * len(pit))
    return {
        "counts": counts.tolist(),
        "distance": float(gaps.max()),
        "p_value": float(kolmogorov(math.sqrt(len(pit)) * furthest)),
    }


def _uniform_spread(pit: NDArray, at: NDArray) -> NDArray:
    """What `Curve.spread` is where the PIT is uniform: by its hazard in place of the found steps.

    Args:
        pit: `[N]` in 0..1, or bounds.
        at: `[K]`, ascending.
    """
    ordered = np.minimum(np.sort(pit), _LAST)
    hazards = -np.diff(np.log1p(-ordered), prepend=0.0)
    variance = np.cumsum(hazards / (len(pit) - np.arange(len(pit))))
    last = np.searchsorted(ordered, np.minimum(at, _LAST), side="right") - 1
    return (1 - np.minimum(at, _LAST)) * (1 + len(pit) * variance[np.maximum(last, 0)])
