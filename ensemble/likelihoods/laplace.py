"""A number with Laplace noise: tails are heavier than the Gaussian's, and the median is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax

from ensemble.likelihoods.continuous import Continuous
from ensemble.likelihoods.mixture_density import LOC, SCALE
from ensemble.likelihoods.parametric import positive


class Laplace(Continuous):
    """Two outputs: the median, and what `positive` makes the mean absolute deviation from it."""

    name = "laplace"
    num_outputs = 2

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Location and scale of the standardised target."""
        return {LOC: outputs[..., 0], SCALE: positive(outputs[..., 1])}

    def standard_log_density(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """The logarithm of exp(-|z|) / 2."""
        return -xp.abs(z) - math.log(2)

    def standard_cdf(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """Exact in both tails."""
        tail = 0.5 * xp.exp(-xp.abs(z))
        return xp.where(z < 0, tail, 1 - tail)

    def standard_variance(self, parts: Mapping[str, Any]) -> Any:
        """2, in units of the scale."""
        return 2.0
