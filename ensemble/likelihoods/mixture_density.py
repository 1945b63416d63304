"""The mixture of estimators, a distribution of numbers on the host.

In float64 and in the target's units: density, CDF, moments, quantiles and scores. On the devices it
is `ensemble.likelihood.mixture_log_density`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import scipy.special

from ensemble.likelihood import Arrays
from ensemble.metrics import regression

LOC, SCALE = "loc", "scale"
"""Parameters that every distribution of a number has, [M, N]."""
NUM_FINE = 400  # Points of the grid on which a mixture without a closed form is scored.
TAILS = 5e-4  # Probability beyond each end of that grid.
_CUTS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)  # Levels of quantiles.
_MAX_PAIRED = 64  # Estimators, of which a closed form goes through all pairs.
_MARGIN = 1.01  # For rounding.
_PIECE = 1 << 16  # Numbers of an array that the caches hold beside others.


class MemberDistribution(Protocol):
    """What must be known of the members' distributions; parts are [M, N] by name."""

    def log_density(self, parts: Arrays, y: Any, xp: Any, special: Any) -> Any:
        """Log density at y."""

    def cdf(self, parts: Arrays, y: Any, xp: Any, special: Any) -> Any:
        """CDF at y."""

    def mean(self, parts: Arrays, xp: Any) -> Any:
        """Mean."""

    def variance(self, parts: Arrays, xp: Any, unit: float = 1.0) -> Any:
        """Variance, where targets are measured in this unit."""

    def to_line(self, y: Any, xp: Any) -> Any:
        """Maps a target to where quantiles are searched and grids are even, which is increasing."""

    def from_line(self, u: Any, xp: Any) -> Any:
        """The inverse of `to_line`."""

    def bracket(self, parts: Arrays, xp: Any) -> tuple[Any, Any]:
        """Values [N] on the line below and above all quantiles that are asked for."""

    def closed_crps(
        self, arrays: Arrays, targets: np.ndarray, weights: Any = None
    ) -> np.ndarray | None:
        """CRPS [N] of the mixture in closed form; None where there is none."""


class MixtureDensity:
    """The mixture of estimators.

    Args:
        family: of their distributions.
        arrays: their predictions [E, N, ...], by name.
        weights: [E], of sum 1; None: all the same.

    Attributes:
        family: the same.
        arrays: the same, float64.
    """

    def __init__(self, family: MemberDistribution, arrays: Arrays, weights: Any = None):
        self.family = family
        self.arrays = {name: np.asarray(one, np.float64) for name, one in arrays.items()}
        self.weights = weights

    def averaged(self, values: Any) -> np.ndarray:
        """Mean over the estimators of values [E, ...]."""
        if self.weights is None:
            return np.asarray(values).mean(axis=0)
        return np.tensordot(self.weights, values, axes=1)

    def log_densities(self, targets: np.ndarray) -> np.ndarray:
        """Log densities [E, N] of the estimators at the targets."""
        y = np.asarray(targets, np.float64)
        return np.asarray(self.family.log_density(self.arrays, y, np, scipy.special))

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """CDF [N] at one value for each example."""
        return self.averaged(self.family.cdf(self.arrays, values, np, scipy.special))

    def pit(self, targets: np.ndarray) -> np.ndarray:
        """CDF [N] at the targets."""
        return self.cdf(np.asarray(targets, np.float64))

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean of the mixture, mean of the variances and variance of the means, [N]."""
        means, noise = self.member_means(), self.family.variance(self.arrays, np)
        mean = self.averaged(means)
        return mean, self.averaged(noise), self.averaged((means - mean) ** 2)

    def member_means(self) -> np.ndarray:
        """Means [E, N] of the estimators: a row is one function of the inputs."""
        return np.asarray(self.family.mean(self.arrays, np))

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles [Q, N]."""
        found = [one._quantiles(levels) for _, one in self._pieces()]
        return np.concatenate(found, axis=1)

    def _quantiles(self, levels: np.ndarray) -> np.ndarray:
        family = self.family
        low, high = family.bracket(self.arrays, np)
        mean, noise, disagreement = self.moments()
        with np.errstate(invalid="ignore"):  # Some distributions have no variance.
            deviation = _MARGIN * np.sqrt(noise + disagreement)
            # Cantelli's inequality: no quantile lies farther from the mean.
            odds = np.sqrt(levels / (1 - levels))[:, None]
            least = family.to_line(mean - deviation / odds, np)
            most = family.to_line(mean + deviation * odds, np)
        low, high = np.fmax(low, least), np.fmin(high, most)
        found = regression.quantiles(lambda u: self.cdf(family.from_line(u, np)), low, high, levels)
        return np.asarray(family.from_line(found, np))

    def _pieces(self) -> Iterator[tuple[slice, MixtureDensity]]:
        """The mixture of some rows after others, so few that the caches hold their arrays."""
        first = next(iter(self.arrays.values()))
        num_rows = first.shape[1]
        size = max(1, _PIECE * num_rows // first.size)
        for start in range(0, num_rows, size):
            rows = slice(start, start + size)
            arrays = {name: one[:, rows] for name, one in self.arrays.items()}
            yield rows, type(self)(self.family, arrays, self.weights)

    def crps(self, targets: np.ndarray) -> np.ndarray:
        """CRPS [N]: in closed form where there is one, else by integrals of the CDF."""
        is_large = len(next(iter(self.arrays.values()))) > _MAX_PAIRED
        found = None
        if not is_large:
            found = self.family.closed_crps(self.arrays, targets, self.weights)
        if found is not None:
            return found
        y = np.asarray(targets, np.float64)
        pieces = [one._crps(y[rows], is_large) for rows, one in self._pieces()]
        return np.concatenate(pieces)

    def _crps(self, targets: np.ndarray, is_large: bool) -> np.ndarray:
        family = self.family
        if is_large:  # Its CDF is smooth, and few values tell it.
            ends = family.to_line(self._quantiles(np.array([TAILS, *_CUTS, 1 - TAILS])), np)
            middle = np.clip(family.to_line(targets, np), ends[0], ends[-1])
            return regression.smooth_crps(
                self.cdf, lambda u: family.from_line(u, np), ends, middle, targets
            )
        low, high = family.to_line(self._quantiles(np.array([TAILS, 1 - TAILS])), np)
        grid = family.from_line(np.linspace(low, high, NUM_FINE), np)  # [G, N]
        cdf = np.stack([self.cdf(values) for values in grid], axis=1)
        return regression.grid_crps(grid.T, cdf, targets)

    def held(
        self, targets: np.ndarray, ends: Callable[[], tuple[np.ndarray, np.ndarray]], level: float
    ) -> np.ndarray:
        """Whether targets [N] are in the central intervals of a level, from and to `ends()`."""
        # A central interval holds a target whose PIT is so near to a half.
        return np.abs(self.pit(targets) - 0.5) <= level / 2
