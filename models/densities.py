"""Target densities by name: each a log density of many chains at once, and where they start.

A density of your own joins in two lines, after which `create("mine")` finds it:

    from models import densities
    densities.register("mine", densities.Density(my_logdensity, num_dims=2))

where `my_logdensity` maps positions [C, D] to [C] nats, up to a constant; -inf says that a point is
impossible.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Density:
    """What a sampler without gradients needs to know of a target.

    Attributes:
        logdensity_fn: from positions [C, D] to [C] nats.
        num_dims: D.
        start_scale: standard deviation of the starts in each dimension; wider than the target, so
            that chains that agree have found it.
    """

    logdensity_fn: Callable[[jax.Array], jax.Array]
    num_dims: int
    start_scale: float = 10.0

    def start(self, rng_key: jax.Array, num_chains: int) -> jax.Array:
        """Draws overdispersed starts [num_chains, D]."""
        return self.start_scale * jax.random.normal(rng_key, (num_chains, self.num_dims))


_densities: dict[str, Density] = {}


def register(name: str, density: Density) -> Density:
    """Makes a density available to `create` under `name`; a name taken is taken over."""
    _densities[name] = density
    return density


def names() -> list[str]:
    """The names that `create` knows, sorted."""
    return sorted(_densities)


def create(name: str) -> Density:
    """Finds the density registered as `name`.

    Raises:
        UserError: when no density of that name is registered.
    """
    if name not in _densities:
        raise UserError(
            f"density={name!r} is not a known density; use one of {', '.join(names())}, or "
            "register your own with models.densities.register(name, density)"
        )
    return _densities[name]


def gaussian_mixture(
    weights: Sequence[float], locs: Sequence[float], scales: Sequence[float]
) -> Callable[[jax.Array], jax.Array]:
    """The log density of a one-dimensional mixture whose widest component is the only one so wide.

    The sum of K terms is taken relative to that component: the others' ratios to it are bounded and
    vanish far out, so nothing overflows, no largest term is sought, and one exponential is saved.

    Args:
        weights: [K], positive; they are normalised.
        locs: [K].
        scales: [K], positive.

    Raises:
        UserError: no component is wider than all others.
    """
    widest = int(np.argmax(scales))
    if sum(scale == scales[widest] for scale in scales) > 1:
        raise UserError(f"scales={list(scales)} must have one that is larger than all others")
    # Log of a weighted component: c2 x^2 + c1 x + c0.
    squares = np.square(np.asarray(scales, np.float64))
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    coefficients = np.stack(
        [
            -0.5 / squares,
            np.asarray(locs) / squares,
            np.log(shares) - 0.5 * np.log(2 * math.pi * squares) - 0.5 * np.square(locs) / squares,
        ],
        axis=1,
    )
    base = [float(c) for c in coefficients[widest]]
    others = [  # Powers of two.
        [float(c) for c in (coefficients[k] - coefficients[widest]) / math.log(2)]
        for k in range(len(scales))
        if k != widest
    ]

    def quadratic(c: Sequence[float], x: jax.Array) -> jax.Array:
        return (c[0] * x + c[1]) * x + c[2]

    def logdensity_fn(positions: jax.Array) -> jax.Array:
        x = positions[:, 0]
        ratio = sum((fast_exp2(quadratic(c, x)) for c in others), jnp.float32(1))
        return quadratic(base, x) + math.log(2) * fast_log2(ratio)

    return logdensity_fn


def correlated_gaussian(num_dims: int, correlation: float) -> Callable[[jax.Array], jax.Array]:
    """The log density of a normal with mean 0 and the covariance `correlation ** |i - j|`.

    Args:
        num_dims: D.
        correlation: of neighbours, between -1 and 1.
    """
    share = 1 / math.sqrt(1 - correlation**2)

    def logdensity_fn(positions: jax.Array) -> jax.Array:
        # Each coordinate given the one before it.
        steps = share * (positions[:, 1:] - correlation * positions[:, :-1])
        return -0.5 * (positions[:, 0] ** 2 + jnp.sum(steps**2, axis=-1))

    return logdensity_fn


# Powers and logarithms. XLA's are exact to the last bit; these take half of the time.

# Polynomials of least relative error, the highest power first.
_EXP2 = (0.001326472731, 0.009671512991, 0.055507335812, 0.240222424268, 0.693147003651, 1.0)
_LOG2 = (
    *(-0.145811691880, 0.234042435884, -0.248876884580, 0.287098705769),
    *(-0.360239624977, 0.480923235416, -0.721352815628, 1.442694902420),
)
_SQRT_HALF = 0x3F3504F3  # Its bits.


def fast_exp2(x: jax.Array) -> jax.Array:
    """2^x of float32 below 127, right to 2e-7 of itself; from -126 down it stays at 2^-126."""
    x = jnp.maximum(x, -126.0)
    whole = jnp.round(x)
    power = _polynomial(_EXP2, x - whole)
    # Adds to the exponent.
    bits = lax.bitcast_convert_type(power, jnp.int32) + (whole.astype(jnp.int32) << 23)
    return lax.bitcast_convert_type(bits, jnp.float32)


def fast_log2(x: jax.Array) -> jax.Array:
    """Logarithm to base 2 of normal positive float32, right to 4e-7 of itself."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - _SQRT_HALF) >> 23  # Leaves a factor from sqrt(1/2) to sqrt(2).
    rest = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    return _polynomial(_LOG2, rest) * rest + exponent.astype(jnp.float32)


def _polynomial(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    value = jnp.float32(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


# "Massively parallel MCMC with JAX": https://rlouf.github.io/post/jax-random-walk-metropolis/
MIXTURE_WEIGHTS = (0.2, 0.3, 0.1, 0.4)
MIXTURE_LOCS = (-2.0, 0.0, 3.2, 2.5)
MIXTURE_SCALES = (1.2, 1.0, 5.0, 2.8)

register(
    "gaussian_mixture",
    Density(gaussian_mixture(MIXTURE_WEIGHTS, MIXTURE_LOCS, MIXTURE_SCALES), num_dims=1),
)
register("correlated_gaussian", Density(correlated_gaussian(10, 0.9), num_dims=10, start_scale=3.0))
