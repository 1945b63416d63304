"""A number whose distribution is of a location-scale family, such as the Gaussian.

A subclass says which location and scale of a standardised target follow from its outputs, and the
density and the CDF of the family at location 0 and scale 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.likelihood import weighted_mean
from ensemble.likelihoods.mixture_density import LOC, SCALE
from ensemble.likelihoods.parametric import Parametric

_REACH = 1e4  # Scales: no quantile that is asked for lies farther from the location.


class Continuous(Parametric):
    """A subclass maps K outputs to a location and a scale of a standardised target."""

    parts = (LOC, SCALE)
    positive_parts = (SCALE,)

    # What a subclass says, of standardised targets, by the names of `predict`.

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The parameters of the distribution [B], `loc` and `scale` among them."""
        raise NotImplementedError

    def standard_log_density(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """Log density at z = (y - loc) / scale, times the scale.

        Args:
            parts: of `predict`.
            z: of the shape of the parts.
            xp: `numpy` or `jax.numpy`.
            special: `scipy.special` or `jax.scipy.special`.
        """
        raise NotImplementedError

    def standard_cdf(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """CDF at z; the arguments are those of `standard_log_density`."""
        raise NotImplementedError

    def standard_log_survival(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """Log probability of z or more, of those that `can_be_censored`."""
        raise NotImplementedError

    def standard_variance(self, parts: Mapping[str, Any]) -> Any:
        """Variance of z."""
        return 1.0

    # What follows.

    def scaled(
        self, arrays: Mapping[str, Any], factor: float, weights: Any = None
    ) -> dict[str, Any]:
        """The members' distributions, such that their mixture is as wide times a factor.

        Its mean stays, and its quantiles move away from there: the distances of all locations from
        their mean, and all scales, are multiplied; where these are of the target's logarithm, so
        are the mean and the width.
        """
        mean = weighted_mean(arrays[LOC], weights)
        moved = {LOC: mean + factor * (arrays[LOC] - mean), SCALE: factor * arrays[SCALE]}
        return {**arrays, **moved}

    def tempered(self, predicted: Mapping[str, Any], factor: Any) -> dict[str, Any]:
        """One member's distributions about the same locations, as wide times a factor."""
        return {**predicted, SCALE: factor * predicted[SCALE]}

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The distribution's parameters [B] in the target's units."""
        parts = self.parameters(params, outputs.astype(jnp.float32))
        ours = {LOC: self.shift + self.scale * parts[LOC], SCALE: self.scale * parts[SCALE]}
        return {**parts, **ours}

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log density of targets y in their units; the other arguments as of the standard one."""
        z = (y - parts[LOC]) / parts[SCALE]
        return self.standard_log_density(parts, z, xp, special) - xp.log(parts[SCALE])

    def cdf(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """CDF at y in the target's units; the other arguments as of the standard one."""
        return self.standard_cdf(parts, (y - parts[LOC]) / parts[SCALE], xp, special)

    def log_survival(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log probability of y or more; the other arguments as of the standard one."""
        return self.standard_log_survival(parts, (y - parts[LOC]) / parts[SCALE], xp, special)

    def mean(self, parts: Mapping[str, Any], xp: Any) -> Any:
        """The location."""
        return parts[LOC]

    def variance(self, parts: Mapping[str, Any], xp: Any, unit: float = 1.0) -> Any:
        """The variance of the family, times the square of the scale."""
        return self.standard_variance(parts) * (parts[SCALE] / unit) ** 2

    def relative_variance(self, parts: Mapping[str, Any]) -> Any:
        """Square of the scale of a standardised target: what beta-NLL weights gradients by."""
        return (parts[SCALE] / self.scale) ** 2

    def bracket(self, parts: Mapping[str, Any], xp: Any) -> tuple[Any, Any]:
        """Values [N] below and above every quantile of `LEVELS` and of the tails."""
        reach = _REACH * parts[SCALE].max(axis=0)
        return parts[LOC].min(axis=0) - reach, parts[LOC].max(axis=0) + reach
