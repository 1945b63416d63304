"""Distributions of one number by their parameters [..., N], arrays of NumPy or JAX.

A family has its log density, its CDF and two moments. Quantiles, CRPS, PIT and intervals of any
mixture of it follow in `numbers.py` and `counts.py`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from scipy.special import ndtr

from ensemble.likelihoods.predictive import Array, Arrays, namespace

LOG_TWO_PI = math.log(2 * math.pi)
LARGEST = 1e15
"""The largest target: the square of what is larger would leave float32."""
_MAX_PAIRED = 128  # Gaussians of a mixture whose CRPS goes through all pairs.


class Family:
    """Distributions of a family, by default of a location and a scale, `loc` and `scale`.

    Each family has `log_density(y)` in nats, or the log probability; `cdf(y)`; and `moments()`, the
    mean and the variance.

    Attributes:
        parameters: [..., N] by name; each is an attribute, too.
        xp: `numpy`, or `jax.numpy` if parameters are JAX's.
        special: `scipy.special`, or its namesake in JAX.
    """

    loc: Array
    scale: Array
    of_log: ClassVar[Any] = None
    """Family of the logarithm with these parameters, which quantiles and factors are of."""

    def __init__(self, parameters: Arrays):
        self.parameters = parameters
        self.xp, self.special = namespace(*parameters.values())
        vars(self).update(parameters)

    def widened(self, centre: Array, factor: Any) -> Arrays:
        """Parameters, moved away from a centre [N] and wider by a factor."""
        loc = centre + factor * (self.loc - centre)
        return {**self.parameters, "loc": loc, "scale": factor * self.scale}

    def crps(self, weights: np.ndarray, y: np.ndarray) -> Any:
        """CRPS [N] of the mixture by weights [S, 1] in closed form; None: there is none."""
        return None

    def _z(self, y: Array) -> Array:
        return (y - self.loc) / self.scale


class Normal(Family):
    """Parameters `loc` and `scale`, the standard deviation."""

    def log_density(self, y: Array) -> Array:
        z = self._z(y)
        return -0.5 * (z * z + LOG_TWO_PI) - self.xp.log(self.scale)

    def cdf(self, y: Array) -> Array:
        return self.special.ndtr(self._z(y))

    def moments(self) -> tuple[Array, Array]:
        return self.loc, self.scale**2

    def crps(self, weights: np.ndarray, y: np.ndarray) -> Any:
        """By all pairs of Gaussians (Grimit et al. 2006, equation 5), unless they are many."""
        if len(self.loc) > _MAX_PAIRED:
            return None
        found = (weights * _expected_distance(y - self.loc, self.scale)).sum(axis=0)
        for k, weight in enumerate(weights):  # Memory: [S, N].
            scales = np.hypot(self.scale[k], self.scale)
            distance = _expected_distance(self.loc[k] - self.loc, scales)
            found -= weight * (weights * distance).sum(axis=0) / 2
        return found


def _expected_distance(offset: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """E|X| of X ~ N(offset, scale^2)."""
    z = offset / scale
    twice = math.sqrt(2 / math.pi) * np.exp(-0.5 * z**2)
    return np.asarray(scale * twice + offset * (2 * ndtr(z) - 1))


class StudentT(Family):
    """Parameters `loc`, `scale` and `df`, above 2, so that there is a variance."""

    df: Array

    def log_density(self, y: Array) -> Array:
        z = self._z(y)
        df = self.df
        log = self.xp.log
        gammaln = self.special.gammaln
        constant = gammaln((df + 1) / 2) - gammaln(df / 2) - log(self.scale)
        return constant - 0.5 * log(df * math.pi) - (df + 1) / 2 * self.xp.log1p(z * z / df)

    def cdf(self, y: Array) -> Array:
        """By the incomplete beta function, of an argument that is exact near z = 0."""
        z = self._z(y)
        df = self.df
        half = self.special.betainc(0.5 + 0 * df, df / 2, z * z / (df + z * z)) / 2
        return 0.5 + self.xp.sign(z) * half

    def moments(self) -> tuple[Array, Array]:
        return self.loc, self.scale**2 * self.df / (self.df - 2)


class LaplaceNoise(Family):
    """Parameters `loc` and `scale`, the mean absolute deviation."""

    def log_density(self, y: Array) -> Array:
        return -self.xp.abs(self._z(y)) - self.xp.log(2 * self.scale)

    def cdf(self, y: Array) -> Array:
        """Exact in both tails."""
        z = self._z(y)
        tail = 0.5 * self.xp.exp(-self.xp.abs(z))
        return self.xp.where(z < 0, tail, 1 - tail)

    def moments(self) -> tuple[Array, Array]:
        return self.loc, 2 * self.scale**2


class LogNormal(Normal):
    """Parameters `loc` and `scale` of the logarithm of a positive number."""

    of_log = Normal

    def log_density(self, y: Array) -> Array:
        log = self.xp.log(y)
        return super().log_density(log) - log

    def cdf(self, y: Array) -> Array:
        return super().cdf(self.xp.log(self.xp.maximum(y, 1e-30)))

    def moments(self) -> tuple[Array, Array]:
        """Within float32, however far a network has left the range of the targets."""
        xp = self.xp
        square = self.scale**2
        mean = xp.exp(xp.minimum(self.loc + square / 2, math.log(LARGEST)))
        return mean, mean**2 * xp.expm1(xp.minimum(square, 18.0))

    crps = Family.crps


class NormalMixture(Normal):
    """Parameters `log_weight`, `loc` and `scale` [..., N, K] of K components (Bishop 1994)."""

    log_weight: Array

    def log_density(self, y: Array) -> Array:
        parts = super().log_density(y[..., None])
        return self.special.logsumexp(self.log_weight + parts, axis=-1)

    def cdf(self, y: Array) -> Array:
        return self._mean(super().cdf(y[..., None]))

    def moments(self) -> tuple[Array, Array]:
        mean = self._mean(self.loc)
        return mean, self._mean(self.scale**2 + (self.loc - mean[..., None]) ** 2)

    def widened(self, centre: Array, factor: Any) -> Arrays:
        return super().widened(centre[..., None], factor)

    def crps(self, weights: np.ndarray, y: np.ndarray) -> Any:
        each = self.loc, self.scale, np.exp(self.log_weight) * weights[..., None]
        loc, scale, weight = (np.moveaxis(v, -1, 0).reshape(-1, v.shape[1]) for v in each)
        return Normal({"loc": loc, "scale": scale}).crps(weight, y)

    def _mean(self, values: Array) -> Array:
        return (self.xp.exp(self.log_weight) * values).sum(-1)


class Poisson(Family):
    """Parameter `rate`."""

    rate: Array

    def log_density(self, y: Array) -> Array:
        xp = self.xp
        least = self.xp.maximum(y, 1)
        of_some = -deviance(least, self.rate) - remainder(least)
        return xp.where(y > 0, of_some - 0.5 * xp.log(2 * math.pi * least), -self.rate)

    def cdf(self, y: Array) -> Array:
        return self.xp.where(y >= 0, self._cdf(self.xp.maximum(self.xp.floor(y), 0)), 0.0)

    def _cdf(self, k: Array) -> Array:
        """CDF at whole numbers from 0 on; of JAX in float32 to 2e-5."""
        if self.xp is np:
            return self.special.gammaincc(k + 1, self.rate)
        exact = self.special.gammaincc(k + 1, jnp.minimum(self.rate, _LARGE_RATE))
        normal = _normal_cdf(k, self.rate, _NO_DISPERSION)
        return jnp.where(self.rate > _LARGE_RATE, normal, exact)

    def moments(self) -> tuple[Array, Array]:
        return self.rate, self.rate


class NegativeBinomial(Poisson):
    """Parameters `rate` and `dispersion`, the variance beyond the rate in squares of the rate."""

    dispersion: Array

    def log_density(self, y: Array) -> Array:
        xp = self.xp
        rate = self.rate
        size = 1 / self.dispersion
        least = xp.maximum(y, 1)
        both = size + least
        of_some = (
            remainder(both)
            - remainder(size)
            - remainder(least)
            - deviance(size, both * (size / (size + rate)))
            - deviance(least, both * (rate / (size + rate)))
            + 0.5 * xp.log(size / both / (2 * math.pi * least))
        )
        return xp.where(y > 0, of_some, -size * xp.log1p(rate / size))

    def _cdf(self, k: Array) -> Array:
        """CDF at whole numbers from 0 on; of JAX in float32 to 1e-2."""
        rate = self.rate
        size = 1 / self.dispersion
        betainc = self.special.betainc
        if self.xp is np:
            return betainc(size, k + 1, size / (size + rate))
        # Of a size beyond `_EXACT` the distribution is hardly different.
        few = jnp.minimum(rate, _EXACT)
        least = jnp.minimum(size, _EXACT)
        exact = 1 - betainc(k + 1, least, few / (least + few))
        # Of a large rate that is far from certain: the count is the rate, of a gamma distribution.
        of_rate = self.special.gammainc(jnp.minimum(size, _LARGE_SIZE), (k + 0.5) * (size / rate))
        normal = _normal_cdf(k, rate, jnp.maximum(size, _LARGE_SIZE))
        rest = jnp.where(rate > _EXACT, of_rate, exact)
        return jnp.where((size > _LARGE_SIZE) & (rate > _LARGE_RATE), normal, rest)

    def moments(self) -> tuple[Array, Array]:
        return self.rate, self.rate + self.dispersion * self.rate**2


# Functions of counts that float32 can hold: probabilities and CDFs of large counts.
#
# The logarithms of large factorials would cancel all but some digits of float32. Saddle points do
# not (Loader 2000, "Fast and accurate computation of binomial probabilities"). JAX's incomplete
# beta and gamma functions lose their digits likewise. There, CDFs of large counts are those of
# Peizer and Pratt 1968, "A normal approximation for binomial, F, beta, and other common, related
# tail probabilities, I".

_FROM_SERIES = 10.0  # Where Stirling's series takes over.
_NEAR = 0.1
_LARGE_RATE, _LARGE_SIZE = 20.0, 10.0  # From which the normal approximation is good to 1e-4.
_EXACT = 1e3  # Up to which JAX's functions are good to some 1e-3.
_NO_DISPERSION = 1e12  # The size of a negative binomial that is Poisson's distribution.


def remainder(x: Array) -> Array:
    """log Gamma(x + 1) beyond Stirling's x log x - x + log(2 pi x) / 2; x is positive."""
    xp, special = namespace(x)
    small = xp.minimum(x, _FROM_SERIES)
    large = xp.maximum(x, _FROM_SERIES)
    stirling = (small + 0.5) * xp.log(small) - small + 0.5 * LOG_TWO_PI
    inverse = 1 / large**2
    series = (1 / 12 - inverse * (1 / 360 - inverse / 1260)) / large
    return xp.where(x < _FROM_SERIES, special.gammaln(small + 1) - stirling, series)


def deviance(x: Array, mean: Array) -> Array:
    """x log(x / mean) + mean - x of positive numbers."""
    return _deviance_ratio(x, mean) * (x - mean) ** 2


def _deviance_ratio(x: Array, mean: Array) -> Array:
    """The same, divided by (x - mean)^2: a series if they are near."""
    xp, _ = namespace(x, mean)
    total = x + mean
    apart = x - mean
    v = apart / total
    is_near = xp.abs(v) < _NEAR
    near = xp.where(is_near, v, 0)
    square = near**2
    odd = near * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square / 9)))
    series = 1 / total + 2 * x / total**2 * odd
    far = (x * xp.log(x / mean) - apart) / xp.where(is_near, 1, apart) ** 2
    return xp.where(is_near, series, far)


def _normal_cdf(k: Array, rate: Array, size: Array) -> Array:
    """CDF at whole numbers k from 0 on by Peizer and Pratt; `size` is the inverse dispersion."""
    total = size + k
    share = rate / (size + rate)
    other = size / (size + rate)
    distance = k + 2 / 3 - rate - share * (k + 1 / 3 - rate)
    distance += 0.02 * (other / (k + 1) - share / size + (other - 0.5) / (total + 1))
    ratio = _deviance_ratio(k + 0.5, rate + share * (k - rate))
    ratio += _deviance_ratio(size - 0.5, size + other * (k - rate))
    return jax.scipy.special.ndtr(distance * jnp.sqrt(2 * ratio * (total / (total + 1 / 6))))
