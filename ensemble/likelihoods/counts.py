"""The base of likelihoods of counts: targets are whole numbers from 0 on.

Probabilities take the place of densities, and sums that of integrals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihood import Arrays
from ensemble.likelihoods.mixture_density import NUM_FINE, TAILS, MixtureDensity
from ensemble.likelihoods.parametric import Parametric, positive
from ensemble.metrics import regression

RATE = "rate"
"""The mean of a count, [M, N]."""
MOST = 2**24
"""The largest count: float32 tells no larger ones apart."""
_REACH = 50.0  # Deviations above the mean; by Cantelli's inequality 1 in 2501 counts lies beyond.
_SEED = 0  # Of the randomised PIT: the same targets have the same one.
_FROM_SERIES = 10.0  # Where Stirling's series takes over.
_NEAR = 0.1
_LARGE_RATE, _LARGE_SIZE = 20.0, 10.0  # From which the normal approximation is good to 1e-4.
_EXACT = 1e3  # Up to which JAX's functions are good to some 1e-3.


class Counts(Parametric):
    """A subclass maps K outputs to a distribution of counts with the mean `RATE`."""

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

    def distribution(self, arrays: Arrays, weights: Any = None) -> CountMixture:
        """What an ensemble says of N targets, as of `Parametric.distribution`."""
        return CountMixture(self, arrays, weights)


class CountMixture(MixtureDensity):
    """The equally weighted mixture of members that predict a count.

    Sums take the place of integrals, and quantiles are whole. The arguments are those of
    `MixtureDensity`.
    """

    def pit(self, targets: np.ndarray) -> np.ndarray:
        """Randomised PIT [N]: uniform between the CDF below the target and the CDF at it.

        Of targets that the predictions describe it is uniform (Smith 1985, "Diagnostic checks of
        non-standard time series models"). The CDF alone would not be.
        """
        probability = self.averaged(np.exp(self.log_densities(targets)))
        share = np.random.default_rng(_SEED).uniform(size=len(probability))
        return super().pit(targets) - share * probability

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles [Q, N], whole numbers."""
        high = self.family.bracket(self.arrays, np)[1]
        return regression.count_quantiles(self.cdf, high, levels)

    def crps(self, targets: np.ndarray) -> np.ndarray:
        """CRPS [N] by sums over counts; where they spread far, over every k-th."""
        low, high = self.quantiles(np.array([TAILS, 1 - TAILS]))
        widest = int((high - low).max()) + 1
        step = -(-widest // NUM_FINE)
        values = low[:, None] + np.arange(0, widest + step, step)  # [N, G]
        cdf = np.stack([self.cdf(column) for column in values.T], axis=1)
        return regression.count_crps(values, cdf, targets)

    def held(
        self, targets: np.ndarray, ends: Callable[[], tuple[np.ndarray, np.ndarray]], level: float
    ) -> np.ndarray:
        """Whether targets [N] are from the low to the high ends, both included: at the least."""
        low, high = ends()
        return (targets >= low) & (targets <= high)


# Functions of counts that float32 can hold: probabilities and CDFs of large counts.
#
# The logarithms of large factorials would cancel all but some digits of float32. Saddle points do
# not (Loader 2000, "Fast and accurate computation of binomial probabilities"). JAX's incomplete
# beta and gamma functions lose their digits likewise. There, CDFs of large counts are those of
# Peizer and Pratt 1968, "A normal approximation for binomial, F, beta, and other common, related
# tail probabilities, I".


def remainder(x: Any, xp: Any, special: Any) -> Any:
    """log Gamma(x + 1) beyond Stirling's x log x - x + log(2 pi x) / 2; x is positive.

    Args:
        x: numbers of any shape.
        xp: `numpy` or `jax.numpy`.
        special: `scipy.special` or `jax.scipy.special`.
    """
    small, large = xp.minimum(x, _FROM_SERIES), xp.maximum(x, _FROM_SERIES)
    stirling = (small + 0.5) * xp.log(small) - small + 0.5 * math.log(2 * math.pi)
    inverse = 1 / large**2
    series = (1 / 12 - inverse * (1 / 360 - inverse / 1260)) / large
    return xp.where(x < _FROM_SERIES, special.gammaln(small + 1) - stirling, series)


def deviance(x: Any, mean: Any, xp: Any) -> Any:
    """x log(x / mean) + mean - x of positive numbers; the arguments are as of `remainder`."""
    return _deviance_ratio(x, mean, xp) * (x - mean) ** 2


def _deviance_ratio(x: Any, mean: Any, xp: Any) -> Any:
    """The same, divided by (x - mean)^2: a series where they are near."""
    total, apart = x + mean, x - mean
    v = apart / total
    is_near = xp.abs(v) < _NEAR
    near = xp.where(is_near, v, 0)
    square = near**2
    odd = near * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square / 9)))
    series = 1 / total + 2 * x / total**2 * odd
    far = (x * xp.log(x / mean) - apart) / xp.where(is_near, 1, apart) ** 2
    return xp.where(is_near, series, far)


def poisson_cdf(k: jax.Array, rate: jax.Array) -> jax.Array:
    """CDF at whole numbers k, float32, to 2e-5.

    Args:
        k: from 0 on.
        rate: the mean.
    """
    exact = jax.scipy.special.gammaincc(k + 1, jnp.minimum(rate, _LARGE_RATE))
    distance = k + 2 / 3 + 0.02 / (k + 1) - rate
    z = distance * jnp.sqrt(2 * _deviance_ratio(k + 0.5, rate, jnp))
    return jnp.where(rate > _LARGE_RATE, jax.scipy.special.ndtr(z), exact)


def negative_binomial_cdf(k: jax.Array, rate: jax.Array, size: jax.Array) -> jax.Array:
    """CDF at whole numbers k, float32, to 3e-3; to 3e-2 of sizes below 0.1, and rates near 1e6.

    Args:
        k: from 0 on.
        rate: the mean.
        size: the inverse of the dispersion.
    """
    # Of moderate parameters; a larger size is hardly different.
    few, least = jnp.minimum(rate, _EXACT), jnp.minimum(size, _EXACT)
    exact = 1 - jax.scipy.special.betainc(k + 1, least, few / (least + few))
    # Of a rate that is far from certain: the count is the rate.
    of_rate = jax.scipy.special.gammainc(jnp.minimum(size, _LARGE_SIZE), (k + 0.5) * (size / rate))
    # Of the rest.
    many = jnp.maximum(size, _LARGE_SIZE)
    total, share, other = many + k, rate / (many + rate), many / (many + rate)
    distance = k + 2 / 3 - (total + 1 / 3) * share
    distance += 0.02 * (other / (k + 1) - share / many + (other - 0.5) / (total + 1))
    ratio = _deviance_ratio(k + 0.5, total * share, jnp)
    ratio += _deviance_ratio(many - 0.5, total * other, jnp)
    normal = jax.scipy.special.ndtr(distance * jnp.sqrt(2 * ratio * (total / (total + 1 / 6))))
    rest = jnp.where(rate > _EXACT, of_rate, exact)
    return jnp.where((size > _LARGE_SIZE) & (rate > _LARGE_RATE), normal, rest)
