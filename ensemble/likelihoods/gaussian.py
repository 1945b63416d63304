"""A number with Gaussian noise: of a variance for each input, or of one that all inputs share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.likelihood import Arrays
from ensemble.likelihoods.continuous import Continuous
from ensemble.likelihoods.mixture_density import LOC, SCALE
from ensemble.likelihoods.numbers import Numbers
from ensemble.likelihoods.parametric import positive
from ensemble.metrics import regression

_FAR = 10.0  # Standard deviations, from which on the series is exact in float32.


class Gaussian(Continuous):
    """Two outputs: the mean, and what `positive` makes the standard deviation."""

    name = "gaussian"
    num_outputs = 2
    constant = Numbers.constant  # It needs no search.
    can_be_censored = can_have_errors = True

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Mean and standard deviation of the standardised target."""
        return {LOC: outputs[..., 0], SCALE: positive(outputs[..., 1])}

    def standard_log_density(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """The log density of N(0, 1)."""
        return -0.5 * (z * z + math.log(2 * math.pi))

    def standard_cdf(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """The CDF of N(0, 1)."""
        return special.ndtr(z)

    def standard_log_survival(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """The log survival function of N(0, 1); far out by its asymptotic series, for JAX's
        derivative cancels there."""
        far = xp.maximum(z, _FAR)
        s = far**-2.0
        series = xp.log1p(-s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s))))
        tail = self.standard_log_density(parts, far, xp, special) - xp.log(far) + series
        return xp.where(z < _FAR, special.log_ndtr(-xp.minimum(z, _FAR)), tail)

    def with_error(self, parts: Mapping[str, Any], error: Any) -> dict[str, Any]:
        """Variances add up."""
        return {**parts, SCALE: (parts[SCALE] ** 2 + error**2) ** 0.5}

    def closed_crps(self, arrays: Arrays, targets: np.ndarray, weights: Any = None) -> np.ndarray:
        """CRPS [N] of the mixture."""
        shape = arrays[LOC].shape
        shares = None if weights is None else np.broadcast_to(weights[:, None], shape)
        return regression.gaussian_mixture_crps(arrays[LOC], arrays[SCALE], targets, shares)

    def expected_log_prob(
        self, params: Mapping[str, Any], outputs: jax.Array, taught: Mapping[str, jax.Array]
    ) -> jax.Array:
        """Log density [B] of a target, in the mean over what a teacher's `exported` says.

        It is largest at the mean and the variance of the teacher's mixture.
        """
        parts = self.predict(params, outputs)
        variance = taught["aleatoric"] + taught["epistemic"]
        squared = (variance + (taught["mean"] - parts[LOC]) ** 2) / parts[SCALE] ** 2
        return -0.5 * (squared + math.log(2 * math.pi)) - jnp.log(parts[SCALE])


class SharedGaussian(Gaussian):
    """One output, the mean; the standard deviation is a parameter that each member learns."""

    name = "gaussian_shared"
    num_outputs = 1

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """`raw_scale` [], 0: the standard deviation of the training targets."""
        return {"raw_scale": jnp.zeros(())}

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Mean and standard deviation of the standardised target."""
        scale = jnp.broadcast_to(positive(params["raw_scale"]), outputs.shape[:-1])
        return {LOC: outputs[..., 0], SCALE: scale}
