"""Distributions of one number by their parameters [..., N], arrays of NumPy or JAX.

A family has its log density, its CDF and two moments. Quantiles, CRPS, PIT and intervals of any
mixture of it follow in `numbers.py` and `counts.py`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from ensemble.likelihoods.predictive import Array, Arrays, namespace

LOG_TWO_PI = math.log(2 * math.pi)
LARGEST = 1e15
"""The largest target: the square of what is larger would leave float32."""


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
        """The CDF; JAX has it in float32, to some 1e-3."""
        xp = self.xp
        k = xp.maximum(xp.floor(y), 0)
        found = self._exact(k) if xp is np else self._single_precision(k)
        return xp.where(y >= 0, found, 0.0)

    def _exact(self, k: Array) -> Array:
        """CDF at whole numbers from 0 on, in float64."""
        return self.special.gammaincc(k + 1, self.rate)

    def _single_precision(self, k: Array) -> Array:
        """The same in float32, in which JAX's incomplete functions lose digits of large counts."""
        few = self.parameters | {"rate": jnp.minimum(self.rate, _LARGE)}
        dispersion = self.parameters.get("dispersion", 0.0)
        size = 1 / jnp.maximum(dispersion, _SMALL)
        # Of much dispersion a count is hardly less certain than its rate, of a gamma distribution.
        of_rate = jax.scipy.special.gammainc(size, (k + 0.5) * size / self.rate)
        cubes = _cube_root_cdf(k, self.rate, dispersion)
        large = jnp.where(dispersion > _SMALL, of_rate, cubes)
        most = jnp.where((dispersion > 0) & (dispersion <= _SMALL), 1 / _SMALL, _LARGE)
        return jnp.where(self.rate > most, large, type(self)(few)._exact(k))

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

    def _exact(self, k: Array) -> Array:
        # In float32, less dispersion makes hardly a difference.
        least = 0.0 if self.xp is np else 1 / _LARGE
        size = 1 / self.xp.maximum(self.dispersion, least)
        return 1 - self.special.betainc(k + 1, size, self.rate / (size + self.rate))

    def moments(self) -> tuple[Array, Array]:
        return self.rate, self.rate + self.dispersion * self.rate**2


# Functions of counts that float32 can hold.
#
# The logarithms of large factorials would cancel all but some digits of float32. Saddle points do
# not (Loader 2000, "Fast and accurate computation of binomial probabilities").

_FROM_SERIES = 10.0  # Where Stirling's series takes over.
_NEAR = 0.1
_LARGE = 500.0  # The rate up to which JAX's incomplete functions are good to some 1e-3.
_SMALL = 0.1  # The dispersion up to which cube roots are as good, of rates from its inverse on.


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
    """x log(x / mean) + mean - x of positive numbers: a series if they are near."""
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
    # Not `apart`, of which slopes would be summed in another order.
    return xp.where(is_near, series, far) * (x - mean) ** 2


def _cube_root_cdf(k: Array, rate: Array, dispersion: Array) -> Array:
    """CDF of a negative binomial at whole numbers k from 0 on; without dispersion of Poisson.

    A count is at most k if a gamma variable of shape k + 1 is at least `rate` times another one of
    mean 1. Cube roots of both are nearly normal (Wilson and Hilferty 1931; Paulson 1942, "An
    approximate normalization of the analysis of variance distribution").
    """
    ours = 1 / (9 * (k + 1))
    theirs = dispersion / 9
    ratio = jnp.expm1(jnp.log1p((rate - k - 1) / (k + 1)) / 3)  # Of cube roots, less 1.
    distance = theirs - ours - ratio * (1 - theirs)
    return jax.scipy.special.ndtr(distance / jnp.sqrt(ours + (1 + ratio) ** 2 * theirs))
