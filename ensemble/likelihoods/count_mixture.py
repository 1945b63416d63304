"""The mixture of members that predict a count: sums in place of integrals, whole quantiles."""

from __future__ import annotations

import numpy as np

from ensemble.likelihoods.mixture_density import NUM_FINE, TAILS, MixtureDensity
from ensemble.metrics import regression

_SEED = 0  # Of the randomised PIT: the same targets have the same one.
_ROUNDING = 1e-6  # Of a count that was read off a grid.


class CountMixture(MixtureDensity):
    """The equally weighted mixture of members; the arguments are those of `MixtureDensity`."""

    def pit(self, targets: np.ndarray) -> np.ndarray:
        """Randomised PIT [N]: uniform between the CDF below the target and the CDF at it.

        Of targets that the predictions describe it is uniform (Smith 1985, "Diagnostic checks of
        non-standard time series models"). The CDF alone would not be.
        """
        probability = np.exp(self.log_densities(targets)).mean(axis=0)
        share = np.random.default_rng(_SEED).uniform(size=len(probability))
        return super().pit(targets) - share * probability

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles [Q, N], whole numbers; of chains, up to the grid's spacing."""
        family = self.family
        if self.is_of_chains:
            found = regression.grid_quantiles(family.grid, self.grid_cdf(), levels)
            return np.ceil(found - _ROUNDING)
        return regression.count_quantiles(self.cdf, family.bracket(self.arrays, np)[1], levels)

    def crps(self, targets: np.ndarray) -> np.ndarray:
        """CRPS [N] by sums over counts; where they spread far, over every k-th."""
        if self.is_of_chains:
            return regression.count_crps(self.family.grid, self.grid_cdf(), targets)
        low, high = self.quantiles(np.array([TAILS, 1 - TAILS]))
        widest = int((high - low).max()) + 1
        step = -(-widest // NUM_FINE)
        values = low[:, None] + np.arange(0, widest + step, step)  # [N, G]
        cdf = np.stack([self.cdf(column) for column in values.T], axis=1)
        return regression.count_crps(values, cdf, targets)

    def beyond_grid(self) -> float:
        """Mean probability that chains give to counts beyond the grid: below 0 there are none."""
        cdf = self.grid_cdf()
        below = cdf[:, 0] if self.family.grid[0] > 0 else 0
        return float(np.mean(below + 1 - cdf[:, -1]))

    def held(
        self, targets: np.ndarray, low: np.ndarray, high: np.ndarray, level: float
    ) -> np.ndarray:
        """Whether targets [N] are from `low` to `high` [N], both included: the level or more."""
        return (targets >= low) & (targets <= high)
