"""A positive number whose logarithm has Gaussian noise: errors are relative to its size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihoods.continuous import Continuous
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.likelihoods.mixture_density import LOC, SCALE
from ensemble.likelihoods.numbers import LARGEST, target_range
from ensemble.likelihoods.parametric import bounded

_MOST = math.log(LARGEST)
"""The largest logarithm of a mean, where a network has left the targets' range: float32 holds
it."""
_MOST_SQUARED = 18.0  # Of the variance of a logarithm, in a variance: above, it leaves float32.
_WIDEST = 3.0
"""The largest deviation of a standardised logarithm: a mean grows with exp of half its square."""
_FARTHEST = 80.0  # Logarithms beyond leave float32.


class LogNormal(Continuous):
    """Two outputs: mean and deviation of the logarithm, which is what is standardised.

    `loc` and `scale` are those of the logarithm; all scores and moments are in the target's units.
    """

    name = "log_normal"
    num_outputs = 2
    standard_log_density = Gaussian.standard_log_density
    standard_cdf = Gaussian.standard_cdf
    standard_log_survival = Gaussian.standard_log_survival
    can_be_censored = True

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Mean and standard deviation of the standardised logarithm."""
        return {LOC: outputs[..., 0], SCALE: bounded(outputs[..., 1], _WIDEST)}

    @classmethod
    def check_targets(cls, targets: np.ndarray, split: str) -> None:
        """Checks that targets [N] are positive.

        Raises:
            UserError: one is not.
        """
        if not np.min(targets) > 0:
            raise UserError(
                f"config.likelihood={cls.name!r} is for positive numbers, and the {split} targets "
                f"hold {np.min(targets):g}: leave such rows out, or set "
                "config.likelihood='gaussian'"
            )

    @classmethod
    def standardisation(cls, targets: np.ndarray) -> tuple[float, float, float, float]:
        """Mean and deviation of the logarithms, least and largest value of the targets."""
        _, _, low, high = target_range(targets)
        logs = np.log(np.asarray(targets, np.float64))
        return float(logs.mean()), float(logs.std()), low, high

    @property
    def units(self) -> tuple[float, float]:
        """Median of the training targets, about, and the size of their differences."""
        return math.exp(self.shift), math.exp(self.shift) * self.scale

    # From the Gaussian of the logarithm to the target.

    def to_line(self, y: Any, xp: Any) -> Any:
        """The logarithm; what is not positive is as small as can be."""
        return xp.log(xp.maximum(y, math.exp(-_FARTHEST)))

    def from_line(self, u: Any, xp: Any) -> Any:
        """The exponential, within float32."""
        return xp.exp(xp.clip(u, -_FARTHEST, _FARTHEST))

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """The log density of the logarithm, and the logarithm of its slope."""
        log = self.to_line(y, xp)
        return super().log_density(parts, log, xp, special) - log

    def cdf(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """The CDF of the logarithm."""
        return super().cdf(parts, self.to_line(y, xp), xp, special)

    def log_survival(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """The log survival function of the logarithm."""
        return super().log_survival(parts, self.to_line(y, xp), xp, special)

    def mean(self, parts: Mapping[str, Any], xp: Any) -> Any:
        """exp(loc + scale^2 / 2)."""
        return xp.exp(xp.minimum(parts[LOC] + parts[SCALE] ** 2 / 2, _MOST))

    def variance(self, parts: Mapping[str, Any], xp: Any, unit: float = 1.0) -> Any:
        """The square of the mean times exp(scale^2) - 1."""
        squared = xp.minimum(parts[SCALE] ** 2, _MOST_SQUARED)
        return (self.mean(parts, xp) / unit) ** 2 * xp.expm1(squared)
