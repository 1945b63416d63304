"""Target densities: log densities of many chains at once, and where chains start.

Your own is an object of `Density`, which a configuration names by its path:

    # mine.py
    MINE = ensemble.densities.Density(my_logdensity, num_dims=2)

with `config.density = "mine.py:MINE"`, or in Python the object. `my_logdensity` maps positions
[C, D] to [C] nats, up to a constant; -inf is an impossible point. Constants of the module are
NumPy's, not jax.numpy's: it is imported before the devices are set up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ensemble.errors import InputError, in_own_code

_CORRELATION = 0.9  # Of neighbours.
LogDensityFn = Callable[[Array], Array]
"""From positions [C, D] to [C] nats."""


@dataclass(frozen=True, eq=False)
class Density:
    """Target of a sampler without gradients.

    Attributes:
        logdensity_fn: Function from positions [C, D] to log densities [C] in nats, up to a
            constant.
        num_dims: Number D of dimensions.
        start_scale: Standard deviation of the starts in each dimension; wider than the target, so
            that chains that agree have found it.
        start_fn: Function `(rng_key, num_chains) -> starts [num_chains, D]`, in place of a normal
            about 0; `start_scale` is then ignored.
    """

    logdensity_fn: LogDensityFn
    num_dims: int
    start_scale: float = 10.0
    start_fn: Callable[[Array, int], Array] | None = None

    def start(self, rng_key: Array, num_chains: int) -> Array:
        """Draws overdispersed starts [num_chains, D].

        Raises:
            InputError: those of `start_fn` have another shape, or it raises an error.
        """
        shape = num_chains, self.num_dims
        if self.start_fn is None:
            return self.start_scale * jax.random.normal(rng_key, shape)
        return _checked("start_fn", shape, self.start_fn, rng_key, num_chains)

    def check(self, num_chains: int) -> None:
        """Refuses a log density that does not map positions [C, D] to [C]; nothing is computed."""
        if self.num_dims < 1:
            raise InputError(f"num_dims={self.num_dims} must be at least 1, coordinates of a point")
        # A sum over the wrong axis has the right shape where C is D.
        count = num_chains + (num_chains == self.num_dims)
        shape = jax.ShapeDtypeStruct((count, self.num_dims), jnp.float32)
        _checked("the log density", (count,), jax.eval_shape, self.logdensity_fn, shape)


def _checked(what: str, shape: tuple[int, ...], fn: Callable[..., Any], *args):
    """Calls what a user wrote, which must return real numbers of a shape.

    Raises:
        InputError: it returns something else, or raises an error.
    """
    try:
        found = fn(*args)
    except Exception as error:
        raise InputError(f"{what} fails {in_own_code(error)}") from error
    there = getattr(found, "shape", ())
    if there != shape or jnp.iscomplexobj(found):
        raise InputError(
            f"{what} has the shape {list(there)}; it must be {list(shape)}, real numbers for all "
            "chains at once"
        )
    return found


def _correlated_gaussian(positions: Array) -> Array:
    """The log density of a normal with mean 0 and the covariance `0.9 ** |i - j|`."""
    share = 1 / math.sqrt(1 - _CORRELATION**2)
    # Each coordinate given the one before it.
    steps = share * (positions[:, 1:] - _CORRELATION * positions[:, :-1])
    return -0.5 * (positions[:, 0] ** 2 + jnp.sum(steps**2, axis=-1))


# Powers and logarithms. XLA's are exact to the last bit; these take half of the time.

# Polynomials of least relative error, the highest power first.
_EXP2 = (0.001326472731, 0.009671512991, 0.055507335812, 0.240222424268, 0.693147003651, 1.0)
_LOG2 = (
    *(-0.145811691880, 0.234042435884, -0.248876884580, 0.287098705769),
    *(-0.360239624977, 0.480923235416, -0.721352815628, 1.442694902420),
)
_SQRT_HALF = 0x3F3504F3  # Its bits.


def fast_exp2(x: Array) -> Array:
    """2^x of float32, right to 2e-7 of itself; beyond -126 and 127 it stays at 2^-126 and 2^127."""
    x = jnp.clip(x, -126.0, 127.0)
    whole = jnp.round(x)
    power = _polynomial(_EXP2, x - whole)
    # Adds to the exponent.
    bits = lax.bitcast_convert_type(power, jnp.int32) + (whole.astype(jnp.int32) << 23)
    return lax.bitcast_convert_type(bits, jnp.float32)


def fast_log2(x: Array) -> Array:
    """Logarithm to base 2 of normal positive float32, right to 4e-7 of itself."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - _SQRT_HALF) >> 23  # Leaves a factor from sqrt(1/2) to sqrt(2).
    rest = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    return _polynomial(_LOG2, rest) * rest + exponent.astype(jnp.float32)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    value = jnp.float32(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


# "Massively parallel MCMC with JAX": https://rlouf.github.io/post/jax-random-walk-metropolis/
MIXTURE_WEIGHTS = (0.2, 0.3, 0.1, 0.4)
MIXTURE_LOCS = (-2.0, 0.0, 3.2, 2.5)
MIXTURE_SCALES = (1.2, 1.0, 5.0, 2.8)


# Coefficients of quadratics `c2 x^2 + c1 x + c0`: of the log of the widest component with its
# weight, and of the others' ratios to it, as powers of two.
_SQUARES = np.square(MIXTURE_SCALES)
_CONSTANTS = np.log(MIXTURE_WEIGHTS) - 0.5 * math.log(2 * math.pi) - np.log(MIXTURE_SCALES)
_QUADRATICS = np.stack(
    [
        -0.5 / _SQUARES,
        MIXTURE_LOCS / _SQUARES,
        _CONSTANTS - 0.5 * np.square(MIXTURE_LOCS) / _SQUARES,
    ],
    axis=1,
)
_INDEX = np.argmax(_SQUARES)
_WIDEST = _QUADRATICS[_INDEX]
_RATIOS = ((np.delete(_QUADRATICS, _INDEX, axis=0) - _WIDEST) / math.log(2)).tolist()


def _gaussian_mixture(positions: Array) -> Array:
    """The log density of the mixture.

    The sum of K terms is taken relative to the widest component: the others' ratios to it are
    bounded and vanish far out, so nothing overflows, no largest term is sought, and one exponential
    is saved. Float32 is exact enough for components near zero of similar widths, as here.
    """
    x = positions[:, 0]

    def quadratic(c: Sequence[float]) -> Array:
        return (c[0] * x + c[1]) * x + c[2]

    ratio = sum((fast_exp2(quadratic(c)) for c in _RATIOS), jnp.float32(1))
    return quadratic(_WIDEST.tolist()) + math.log(2) * fast_log2(ratio)


GAUSSIAN_MIXTURE = Density(_gaussian_mixture, num_dims=1)
CORRELATED_GAUSSIAN = Density(_correlated_gaussian, num_dims=10, start_scale=3.0)
