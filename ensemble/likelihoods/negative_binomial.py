"""A count whose variance is above its mean: a Poisson count whose rate is itself uncertain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.likelihoods.counts import RATE, Counts, deviance, negative_binomial_cdf, remainder
from ensemble.likelihoods.parametric import positive

DISPERSION = "dispersion"
"""Variance beyond the mean, in squares of the mean, [M, N]; the inverse is called r or size."""
_LEAST = 0.1  # Of the variance beyond the mean at the start, in means.


class NegativeBinomial(Counts):
    """Two outputs, of which the rate and the dispersion follow.

    Where they are 0, mean and variance are those of the training targets.
    """

    name = "negative_binomial"
    num_outputs = 2
    parts = (RATE, DISPERSION)
    positive_parts = (RATE, DISPERSION)

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Rate and dispersion [B]."""
        outputs = outputs.astype(jnp.float32)
        beyond = max(self.scale**2 - self.shift, _LEAST * self.shift)
        dispersion = beyond / self.shift**2 * positive(outputs[..., 1])
        return {RATE: self.rate(outputs), DISPERSION: dispersion}

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log probability of counts y."""
        rate, size, least = parts[RATE], 1 / parts[DISPERSION], xp.maximum(y, 1)
        both = size + least
        of_some = (
            remainder(both, xp, special)
            - remainder(size, xp, special)
            - remainder(least, xp, special)
            - deviance(size, both * (size / (size + rate)), xp)
            - deviance(least, both * (rate / (size + rate)), xp)
            + 0.5 * xp.log(size / both / (2 * math.pi * least))
        )
        return xp.where(y > 0, of_some, -size * xp.log1p(rate / size))

    def count_cdf(self, parts: Mapping[str, Any], k: Any, xp: Any, special: Any) -> Any:
        """By the incomplete beta function, as far as float32 goes."""
        rate, size = parts[RATE], 1 / parts[DISPERSION]
        if xp is jnp:
            return negative_binomial_cdf(k, rate, size)
        return special.betainc(size, k + 1, size / (size + rate))

    def variance(self, parts: Mapping[str, Any], xp: Any, unit: float = 1.0) -> Any:
        """The rate, and the dispersion times its square."""
        rate = parts[RATE] / unit
        return rate / unit + parts[DISPERSION] * rate**2
