"""How heavy the tail of draws is: whether a mean of them tells anything."""

import numpy as np
from numpy.typing import ArrayLike

from ensemble.metrics.checks import Floats

MIN_EXAMPLES = 500
"""Fewer do not show how heavy a tail is."""
INFINITE_VARIANCE = 0.5
"""The shape from which on a tail has no variance."""
_SHARE = 0.2  # Of the draws, the largest, which are the tail.
_PRIOR = 3.0


def tail_shape(values: ArrayLike) -> float:
    """Shape of the generalised Pareto distribution of the largest draws, less their threshold.

    Zhang and Stephens 2009, "A new and efficient estimation method for the generalized Pareto
    distribution"; Vehtari et al. (arXiv:1507.02646) judge means by it.

    Args:
        values: `[N]`.

    Returns:
        The shape: 1 / k of a tail like that of x^-k, 0 of one that falls exponentially.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    count = int(_SHARE * len(ordered))
    tail = ordered[-count:] - ordered[-count - 1]
    if not tail[count // 4] > 0:
        return 0.0  # More than a few are equal: there is no tail to speak of.
    steps = np.arange(1, 31 + int(np.sqrt(count))) - 0.5
    slopes = (1 - np.sqrt((len(steps)) / steps)) / (_PRIOR * tail[count // 4]) + 1 / tail[-1]
    weights = _weights(slopes, tail)
    return float(np.log1p(-(slopes * weights).sum() * tail).mean())


def has_heavy_tail(values: ArrayLike) -> bool:
    """Whether the variance of the draws `[N]` may be infinite, as far as so many can tell."""
    values = np.asarray(values, np.float64)
    return len(values) >= MIN_EXAMPLES and tail_shape(values) >= INFINITE_VARIANCE


def _weights(slopes: Floats, tail: Floats) -> Floats:
    """Weights each slope by its profile likelihood, of sum 1."""
    shapes = np.log1p(-slopes[:, None] * tail).mean(axis=1)
    logs = len(tail) * (np.log(-slopes / shapes) - shapes - 1)
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()
