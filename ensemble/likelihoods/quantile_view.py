"""What an ensemble says of numbers by the means of its estimators' quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.checks import Floats
from ensemble.scoring.view import QuantileView

QUANTILES = "quantile"
"""[M, N, Q], in the target's units, ascending."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanOfQuantiles(QuantileView):
    """The attributes beside those of `View`:

    Attributes:
        levels: [Q], ascending, 0.5 among them.
        pairs: places of the levels q and 1 - q, the widest band first.
    """

    levels: Floats
    pairs: Sequence[tuple[int, int]]

    @cached_property
    def y(self) -> Floats:  # type: ignore[override]
        return np.asarray(self.targets, np.float64)

    @cached_property
    def quantiles(self) -> Floats:  # type: ignore[override]
        return self.mean(self.arrays[QUANTILES])

    @cached_property
    def _of_bands(self) -> dict[float, tuple[int, int]]:
        return {float(self.levels[j] - self.levels[i]): (i, j) for i, j in self.pairs}

    @property
    def bands(self) -> Sequence[float]:
        return tuple(self._of_bands)

    @property
    def _middle(self) -> int:
        return int(np.flatnonzero(self.levels == 0.5)[0])

    @property
    def point(self) -> Floats:
        return self.median

    @property
    def median(self) -> Floats:
        return self.quantiles[:, self._middle]

    @cached_property
    def crps(self) -> Floats:  # type: ignore[override]
        """The CRPS as quantiles tell it: twice the pinball loss, integrated over levels.

        Each level stands for those that are nearer to it than to another (Gneiting and Ranjan 2011,
        equation 10).
        """
        levels, missed = self.levels, self.y[:, None] - self.quantiles
        ends = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
        return 2 * np.maximum(levels * missed, (levels - 1) * missed) @ np.diff(ends)

    @property
    def disagreement(self) -> Floats:
        return self.variance(self.arrays[QUANTILES][..., self._middle])

    def ends(self, band: float) -> tuple[Floats, Floats]:
        low, high = self._of_bands[band]
        return self.quantiles[:, low], self.quantiles[:, high]

    def held(self, band: float) -> NDArray:
        low, high = self.ends(band)
        return (self.y >= low) & (self.y <= high)
