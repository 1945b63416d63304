"""What the likelihoods of counts share: targets are whole numbers from 0 on.

Probabilities take the place of densities, and sums that of integrals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihood import Arrays
from ensemble.likelihoods.count_mixture import CountMixture
from ensemble.likelihoods.parametric import NUM_GRID_POINTS, Parametric
from ensemble.likelihoods.scales import positive

RATE = "rate"
"""The mean of a count, [M, N]."""
MOST = 2**24
"""The largest count: float32 tells no larger ones apart."""
_REACH = 50.0  # Deviations above the mean; by Cantelli's inequality 1 in 2501 counts lies beyond.


class Counts(Parametric):
    """A tenant maps K outputs to a distribution of counts with the mean `RATE`."""

    is_of_counts = True
    parts: tuple[str, ...] = (RATE,)
    positive_parts: tuple[str, ...] = (RATE,)

    @classmethod
    def check_targets(cls, targets: np.ndarray, split: str) -> None:
        """Checks that targets [N] are counts.

        Raises:
            UserError: one is negative, fractional or too large.
        """
        values = np.asarray(targets)
        is_bad = (values < 0) | (values != np.floor(values)) | (values > MOST)
        if is_bad.any():
            raise UserError(
                f"config.likelihood={cls.name!r} is for counts, whole numbers from 0 to {MOST}, "
                f"and the {split} targets hold {values[is_bad][0]:g}: set "
                "config.likelihood='gaussian', or 'log_normal' for positive numbers"
            )

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Self:
        """The inverse of `describe`.

        Raises:
            ValueError: the description is damaged or forged.
        """
        found = super().described(description)
        if not (found.shift > 0 and found.low >= 0):
            raise ValueError("dataset.target_shift and target_low must be of counts")
        return found

    def rate(self, outputs: jax.Array) -> jax.Array:
        """The mean [B]; as an output moves by 1, it moves by about a deviation of the targets.

        It grows as fast as the output, and no faster: a rate beyond the targets stays finite.
        """
        return self.shift * positive(self.scale / self.shift * outputs[..., 0])

    def mean(self, parts: Mapping[str, Any], xp: Any) -> Any:
        """The rate."""
        return parts[RATE]

    def cdf(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """CDF at y, whole or not."""
        k = xp.floor(y)
        return xp.where(k >= 0, self.count_cdf(parts, xp.maximum(k, 0), xp, special), 0)

    def count_cdf(self, parts: Mapping[str, Any], k: Any, xp: Any, special: Any) -> Any:
        """CDF at whole numbers k from 0 on; the other arguments are those of `cdf`."""
        raise NotImplementedError

    def bracket(self, parts: Mapping[str, Any], xp: Any) -> tuple[Any, Any]:
        """Values [N] below and above every quantile of `LEVELS` and of the tails."""
        deviation = xp.sqrt(self.variance(parts, xp))
        high = (self.mean(parts, xp) + _REACH * (deviation + 1)).max(axis=0)
        return xp.full_like(high, -1), high

    def snapped(self, quantile: Any, xp: Any) -> Any:
        """The nearest whole number."""
        return xp.ceil(quantile - 0.5)

    def distribution(self, arrays: Arrays) -> CountMixture:
        """What an ensemble says of N targets, from predictions [M, N, ...] of its members."""
        return CountMixture(self, arrays)

    @property
    def grid(self) -> np.ndarray:
        """[G] counts at which the CDF of a chain is kept."""
        margin = self.high - self.low
        low = max(self.low - margin, 0)
        return np.unique(np.round(np.linspace(low, self.high + margin, NUM_GRID_POINTS)))
