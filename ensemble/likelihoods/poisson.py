"""A count whose variance is its mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.likelihoods.counts import RATE, Counts, deviance, poisson_cdf, remainder


class Poisson(Counts):
    """One output, of which the rate follows."""

    name = "poisson"
    num_outputs = 1

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The rate [B]."""
        return {RATE: self.rate(outputs.astype(jnp.float32))}

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log probability of counts y."""
        rate, least = parts[RATE], xp.maximum(y, 1)
        of_some = -deviance(least, rate, xp) - remainder(least, xp, special)
        return xp.where(y > 0, of_some - 0.5 * xp.log(2 * math.pi * least), -rate)

    def count_cdf(self, parts: Mapping[str, Any], k: Any, xp: Any, special: Any) -> Any:
        """By the incomplete gamma function, as far as float32 goes."""
        if xp is jnp:
            return poisson_cdf(k, parts[RATE])
        return special.gammaincc(k + 1, parts[RATE])

    def variance(self, parts: Mapping[str, Any], xp: Any, unit: float = 1.0) -> Any:
        """The rate."""
        return parts[RATE] / unit / unit
