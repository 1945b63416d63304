"""A number whose noise is a mixture of Gaussians: skewed, of several modes, or with heavy tails.

Mixture density networks (Bishop 1994, NCRG/94/004).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ensemble.likelihood import Arrays, weighted_mean
from ensemble.likelihood_keys import MAX_COMPONENTS
from ensemble.likelihoods.mixture_density import LOC, SCALE
from ensemble.likelihoods.parametric import Parametric, positive
from ensemble.metrics import regression

LOG_WEIGHT = "log_weight"
"""Logarithms of the weights of K components, [M, N, K]; their sum is 1."""
_REACH = 1e4  # Scales: no quantile that is asked for lies farther from all components.


class MixtureOfGaussians(Parametric):
    """Three outputs for each of K components: the logit of its weight, its mean, its deviation.

    Where the outputs are 0, components stand at quantiles of the standard normal distribution, and
    their mixture has mean 0 and variance 1.

    Args:
        shift: mean of the training targets.
        scale: their standard deviation.
        low: their minimum.
        high: their maximum.
        components: K.
    """

    name = "mixture_of_gaussians"
    parts = (LOG_WEIGHT, LOC, SCALE)
    positive_parts = (SCALE,)
    part_ndim = 3

    def __init__(self, shift: float, scale: float, low: float, high: float, components: int):
        super().__init__(shift, scale, low, high)
        self.components = components

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """3 K."""
        return 3 * self.components

    @classmethod
    def described_settings(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        """How many components."""
        components = description["components"]
        if type(components) is not int or not 1 <= components <= MAX_COMPONENTS:
            raise ValueError(f"dataset.components must be from 1 to {MAX_COMPONENTS}")
        return {"components": components}

    def describe(self) -> dict[str, Any]:
        """Returns how targets are standardised, and how many components there are, JSON-ready."""
        return {**super().describe(), "components": self.components}

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Logarithm of the weight, mean and deviation of each component [B, K]."""
        logits, locs, raw_scales = jnp.split(outputs.astype(jnp.float32), 3, axis=-1)
        middles = (np.arange(self.components) + 0.5) / self.components
        starts = scipy.special.ndtri(middles)
        deviation = math.sqrt(1 - starts.var())
        return {
            LOG_WEIGHT: jax.nn.log_softmax(logits),
            LOC: self.shift + self.scale * (jnp.asarray(starts, jnp.float32) + locs),
            SCALE: self.scale * positive(raw_scales, deviation),
        }

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log density at y in the target's units."""
        z = (xp.asarray(y)[..., None] - parts[LOC]) / parts[SCALE]
        each = -0.5 * (z * z + math.log(2 * math.pi)) - xp.log(parts[SCALE])
        return special.logsumexp(parts[LOG_WEIGHT] + each, axis=-1)

    def cdf(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """CDF at y in the target's units."""
        z = (xp.asarray(y)[..., None] - parts[LOC]) / parts[SCALE]
        return (xp.exp(parts[LOG_WEIGHT]) * special.ndtr(z)).sum(axis=-1)

    def mean(self, parts: Mapping[str, Any], xp: Any) -> Any:
        """Mean over the components."""
        return (xp.exp(parts[LOG_WEIGHT]) * parts[LOC]).sum(axis=-1)

    def variance(self, parts: Mapping[str, Any], xp: Any, unit: float = 1.0) -> Any:
        """Within the components and between them."""
        apart = (parts[LOC] - self.mean(parts, xp)[..., None]) / unit
        squares = (parts[SCALE] / unit) ** 2 + apart**2
        return (xp.exp(parts[LOG_WEIGHT]) * squares).sum(axis=-1)

    def bracket(self, parts: Mapping[str, Any], xp: Any) -> tuple[Any, Any]:
        """Values [N] below and above every quantile of `LEVELS` and of the tails."""
        reach = _REACH * parts[SCALE].max(axis=(0, -1))
        return parts[LOC].min(axis=(0, -1)) - reach, parts[LOC].max(axis=(0, -1)) + reach

    def scaled(
        self, arrays: Mapping[str, Any], factor: float, weights: Any = None
    ) -> dict[str, Any]:
        """The members' distributions, such that their mixture is as wide times a factor."""
        mean = weighted_mean(self.mean(arrays, jnp), weights)[..., None]
        moved = {LOC: mean + factor * (arrays[LOC] - mean), SCALE: factor * arrays[SCALE]}
        return {**arrays, **moved}

    def closed_crps(self, arrays: Arrays, targets: np.ndarray, weights: Any = None) -> np.ndarray:
        """CRPS [N] of the mixture of all members' components."""
        flat = {
            name: np.moveaxis(np.asarray(one, np.float64), -1, 0).reshape(-1, one.shape[1])
            for name, one in arrays.items()
        }
        num_members, num_components = len(arrays[LOC]), arrays[LOC].shape[-1]
        shares: Any = 1 / num_members
        if weights is not None:
            shares = np.tile(weights, num_components)[:, None]
        return regression.gaussian_mixture_crps(
            flat[LOC], flat[SCALE], targets, np.exp(flat[LOG_WEIGHT]) * shares
        )
