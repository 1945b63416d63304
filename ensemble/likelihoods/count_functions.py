"""Functions of counts that float32 can hold: probabilities and CDFs of large counts.

The logarithms of large factorials would cancel all but some digits of float32. Saddle points do
not (Loader 2000, "Fast and accurate computation of binomial probabilities"). JAX's incomplete beta
and gamma functions lose their digits likewise. There, CDFs of large counts are those of Peizer and
Pratt 1968, "A normal approximation for binomial, F, beta, and other common, related tail
probabilities, I".
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special

_FROM_SERIES = 10.0  # Where Stirling's series takes over.
_NEAR = 0.1
_LARGE_RATE, _LARGE_SIZE = 20.0, 10.0  # From which the normal approximation is good to 1e-4.
_EXACT = 1e3  # Up to which JAX's functions are good to some 1e-3.


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
    exact = special.gammaincc(k + 1, jnp.minimum(rate, _LARGE_RATE))
    distance = k + 2 / 3 + 0.02 / (k + 1) - rate
    z = distance * jnp.sqrt(2 * _deviance_ratio(k + 0.5, rate, jnp))
    return jnp.where(rate > _LARGE_RATE, special.ndtr(z), exact)


def negative_binomial_cdf(k: jax.Array, rate: jax.Array, size: jax.Array) -> jax.Array:
    """CDF at whole numbers k, float32, to 3e-3; to 3e-2 of sizes below 0.1, and rates near 1e6.

    Args:
        k: from 0 on.
        rate: the mean.
        size: the inverse of the dispersion.
    """
    # Of moderate parameters; a larger size is hardly different.
    few, least = jnp.minimum(rate, _EXACT), jnp.minimum(size, _EXACT)
    exact = 1 - special.betainc(k + 1, least, few / (least + few))
    # Of a rate that is far from certain: the count is the rate.
    of_rate = special.gammainc(jnp.minimum(size, _LARGE_SIZE), (k + 0.5) * (size / rate))
    # Of the rest.
    many = jnp.maximum(size, _LARGE_SIZE)
    total, share, other = many + k, rate / (many + rate), many / (many + rate)
    distance = k + 2 / 3 - (total + 1 / 3) * share
    distance += 0.02 * (other / (k + 1) - share / many + (other - 0.5) / (total + 1))
    ratio = _deviance_ratio(k + 0.5, total * share, jnp)
    ratio += _deviance_ratio(many - 0.5, total * other, jnp)
    normal = special.ndtr(distance * jnp.sqrt(2 * ratio * (total / (total + 1 / 6))))
    rest = jnp.where(rate > _EXACT, of_rate, exact)
    return jnp.where((size > _LARGE_SIZE) & (rate > _LARGE_RATE), normal, rest)
