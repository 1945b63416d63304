"""The equally weighted mixture of members, a distribution of numbers on the host.

In float64 and in the target's units: density, CDF, moments, quantiles and scores. A member is
either a distribution by its parameters, or a chain: the mixture over its draws, of which sums are
left. On the devices it is `ensemble.likelihood.mixture_log_density`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import scipy.special

from ensemble.likelihood import Arrays
from ensemble.metrics import regression

LOC, SCALE = "loc", "scale"
"""Parameters that every distribution of a number has, [M, N]."""
GRID = "grid_cdf"
"""Of a chain, its CDF on a grid, [C, N, G]; predictions that have it are those of chains."""
NUM_FINE = 400  # Points of the grid on which a mixture without a closed form is scored.
TAILS = 5e-4  # Probability beyond each end of that grid.
_MAX_BEYOND = 0.005  # Probability beyond a chain's grid, above which they are not known.


class MemberDistribution(Protocol):
    """What must be known of the members' distributions; parts are [M, N] by name."""

    @property
    def grid(self) -> np.ndarray:
        """[G] values of a target at which the CDF of a chain is kept."""

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
    """The equally weighted mixture of members.

    Args:
        family: of the members' distributions.
        arrays: their predictions [M, N, ...], by name.
        weights: [M] of the members, of sum 1; None: all the same.

    Attributes:
        family: the same.
        arrays: the same, float64.
        is_of_chains: whether the members are chains.
    """

    def __init__(self, family: MemberDistribution, arrays: Arrays, weights: Any = None):
        self.family = family
        self.arrays = {name: np.asarray(one, np.float64) for name, one in arrays.items()}
        self.weights = weights
        self.is_of_chains = GRID in arrays

    def averaged(self, values: Any) -> np.ndarray:
        """Mean over the members of values [M, ...]."""
        if self.weights is None:
            return np.asarray(values).mean(axis=0)
        return np.tensordot(self.weights, values, axes=1)

    def log_densities(self, targets: np.ndarray) -> np.ndarray:
        """Log densities [M, N] of the members at the targets; of chains, those that were kept."""
        if self.is_of_chains:
            return self.arrays["log_density"]
        y = np.asarray(targets, np.float64)
        return np.asarray(self.family.log_density(self.arrays, y, np, scipy.special))

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """CDF [N] at one value for each example; of members only."""
        return self.averaged(self.family.cdf(self.arrays, values, np, scipy.special))

    def pit(self, targets: np.ndarray) -> np.ndarray:
        """CDF [N] at the targets; of chains, what was kept."""
        if self.is_of_chains:
            return self.averaged(self.arrays["cdf"])
        return self.cdf(np.asarray(targets, np.float64))

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean of the mixture, mean of the variances and variance of the means, [N]."""
        arrays, means = self.arrays, self.member_means()
        if self.is_of_chains:
            noise, within = arrays["noise"], self.averaged(arrays["spread"])
        else:
            noise = self.family.variance(arrays, np)
            within = np.zeros(means.shape[1])
        mean = self.averaged(means)
        return mean, self.averaged(noise), within + self.averaged((means - mean) ** 2)

    def member_means(self) -> np.ndarray:
        """Means [M, N] of the members: a row is one function of the inputs."""
        if self.is_of_chains:
            return self.arrays["mean"]
        return np.asarray(self.family.mean(self.arrays, np))

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles [Q, N]; of chains, read off the grid."""
        family = self.family
        if self.is_of_chains:
            grid = family.to_line(family.grid, np)
            found = regression.grid_quantiles(grid, self.grid_cdf(), levels)
        else:
            low, high = family.bracket(self.arrays, np)
            found = regression.quantiles(
                lambda u: self.cdf(family.from_line(u, np)), low, high, levels
            )
        return np.asarray(family.from_line(found, np))

    def crps(self, targets: np.ndarray) -> np.ndarray:
        """CRPS [N]: in closed form where there is one, else from the CDF on a grid."""
        if self.is_of_chains:
            return regression.grid_crps(self.family.grid, self.grid_cdf(), targets)
        found = self.family.closed_crps(self.arrays, targets, self.weights)
        if found is not None:
            return found
        low, high = self.family.to_line(self.quantiles(np.array([TAILS, 1 - TAILS])), np)
        grid = self.family.from_line(np.linspace(low, high, NUM_FINE), np)  # [G, N]
        cdf = np.stack([self.cdf(values) for values in grid], axis=1)
        return regression.grid_crps(grid.T, cdf, targets)

    def held(
        self, targets: np.ndarray, ends: Callable[[], tuple[np.ndarray, np.ndarray]], level: float
    ) -> np.ndarray:
        """Whether targets [N] are in the central intervals of a level, from and to `ends()`."""
        # A central interval holds a target whose PIT is so near to a half.
        return np.abs(self.pit(targets) - 0.5) <= level / 2

    @property
    def ends_too_early(self) -> bool:
        """Of chains: whether too much lies beyond their grid to tell intervals from it."""
        return self.is_of_chains and self.beyond_grid() > _MAX_BEYOND

    def beyond_grid(self) -> float:
        """Mean probability that chains give to values beyond the grid's ends."""
        cdf = self.grid_cdf()
        return float(np.mean(cdf[:, 0] + 1 - cdf[:, -1]))

    def grid_cdf(self) -> np.ndarray:
        """Of chains, their mean CDF [N, G] on the grid of the family."""
        return self.averaged(self.arrays[GRID])
