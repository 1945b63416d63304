"""Target densities: log densities of many chains at once, and where chains start.

Your own is an object of `Density`, which a configuration names by its path:

    # mine.py
    MINE = ensemble.densities.Density(my_logdensity, num_dims=2)

with `config.density = "mine.py:MINE"`, or in Python the object. `my_logdensity` maps positions
[C, D] to [C] nats, up to a constant; -inf is an impossible point. Constants of the module are
NumPy's, not jax.numpy's: it is imported before the devices are set up.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ensemble.errors import InputError, in_one_line

LogDensityFn = Callable[[jax.Array], jax.Array]
"""From positions [C, D] to [C] nats."""


@dataclasses.dataclass(frozen=True, eq=False)
class Density:
    """What a sampler without gradients needs to know of a target.

    Attributes:
        logdensity_fn: from positions [C, D] to [C] nats.
        num_dims: D.
        start_scale: standard deviation of the starts in each dimension; wider than the target, so
            that chains that agree have found it.
        start_fn: `(rng_key, num_chains) -> [num_chains, D]`, starts of your own where a normal
            about 0 would not do; `start_scale` then says nothing.
    """

    logdensity_fn: Callable[[jax.Array], jax.Array]
    num_dims: int
    start_scale: float = 10.0
    start_fn: Callable[[jax.Array, int], jax.Array] | None = None

    def start(self, rng_key: jax.Array, num_chains: int) -> jax.Array:
        """Draws overdispersed starts [num_chains, D].

        Raises:
            InputError: those of `start_fn` have another shape, or it raises an error.
        """
        shape = num_chains, self.num_dims
        if self.start_fn is None:
            return self.start_scale * jax.random.normal(rng_key, shape)
        try:
            starts = self.start_fn(rng_key, num_chains)
        except Exception as error:
            raise InputError(
                f"start_fn raises {type(error).__name__}: {in_one_line(error)}; it must take a key "
                "and a number of chains"
            ) from error
        if jnp.shape(starts) != shape:
            raise InputError(
                f"start_fn gives starts of the shape {list(jnp.shape(starts))}, must be "
                f"{list(shape)}: one row for each chain"
            )
        return starts


def gaussian_mixture(
    weights: Sequence[float], locs: Sequence[float], scales: Sequence[float]
) -> Callable[[jax.Array], jax.Array]:
    """The log density of a one-dimensional mixture.

    Where float32 can do it, the sum of K terms is taken relative to the widest component: the
    others' ratios to it are bounded and vanish far out, so nothing overflows, no largest term is
    sought, and one exponential is saved.

    Args:
        weights: [K], positive; they are normalised.
        locs: [K].
        scales: [K], positive.
    """
    middles, widths = np.asarray(locs, np.float64), np.asarray(scales, np.float64)
    constants = np.log(np.asarray(weights, np.float64) / np.sum(weights))
    constants = constants - 0.5 * math.log(2 * math.pi) - np.log(widths)
    # Log of a weighted component: c2 x^2 + c1 x + c0.
    squares = np.square(widths)
    coefficients = np.stack(
        [-0.5 / squares, middles / squares, constants - 0.5 * np.square(middles) / squares], axis=1
    )
    widest = int(np.argmax(widths))
    base = coefficients[widest]
    others = (np.delete(coefficients, widest, axis=0) - base) / math.log(2)  # Powers of two.
    if _is_exact(base, widths[widest], others):
        return _mixture_by_ratios(base, others)
    return _mixture_by_terms(constants, middles, widths)


_MAX_PEAK = 60.0  # Bits: sums of such ratios are far from the largest float32.
_MAX_MAGNITUDE = 256.0  # Of what cancels: float32 then leaves errors of 2e-5.
_NEGLIGIBLE = 24.0  # Bits below the widest component, float32's own.
_NUM_TAIL_SCALES = 6.0  # Of the widest component, beyond which errors are relative.


def _is_exact(base: np.ndarray, scale: float, others: np.ndarray) -> bool:
    """Whether ratios to the widest component neither overflow nor cancel in float32.

    Args:
        base: [3], coefficients of its log.
        scale: of it.
        others: [K - 1, 3], of the ratios' logarithms to base 2.
    """
    if not (others[:, 0] < 0).all():
        return False  # Another is as wide.
    middles = np.append(-others[:, 1] / (2 * others[:, 0]), -base[1] / (2 * base[0]))
    peaks = others[:, 2] - others[:, 1] ** 2 / (4 * others[:, 0])
    # As far from its middle as a term matters.
    reaches = np.sqrt(np.maximum(peaks + _NEGLIGIBLE, 0) / -others[:, 0])
    furthest = np.abs(middles) + np.append(reaches, _NUM_TAIL_SCALES * scale)
    sizes = np.abs(np.vstack([others, base]))
    magnitudes = (sizes[:, 0] * furthest + sizes[:, 1]) * furthest + sizes[:, 2]
    return bool((peaks < _MAX_PEAK).all() and (magnitudes < _MAX_MAGNITUDE).all())


def _mixture_by_ratios(base: np.ndarray, others: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """The fast way, by quadratics."""

    def quadratic(c: Sequence[float], x: jax.Array) -> jax.Array:
        return (c[0] * x + c[1]) * x + c[2]

    widest, ratios = base.tolist(), others.tolist()

    def logdensity_fn(positions: jax.Array) -> jax.Array:
        x = positions[:, 0]
        ratio = sum((fast_exp2(quadratic(c, x)) for c in ratios), jnp.float32(1))
        return quadratic(widest, x) + math.log(2) * fast_log2(ratio)

    return logdensity_fn


def _mixture_by_terms(
    constants: np.ndarray, locs: np.ndarray, scales: np.ndarray
) -> Callable[[jax.Array], jax.Array]:
    """The way that always works, relative to the largest term."""
    components = list(zip(constants.tolist(), locs.tolist(), scales.tolist(), strict=True))

    def logdensity_fn(positions: jax.Array) -> jax.Array:
        x = positions[:, 0]
        terms = [c - 0.5 * jnp.square((x - loc) / scale) for c, loc, scale in components]
        # Finite, for where all are -inf so is the sum.
        largest = jnp.maximum(functools.reduce(jnp.maximum, terms), jnp.finfo(jnp.float32).min)
        # Term by term: the order of a sum over an axis may depend on its shape.
        return largest + jnp.log(sum(jnp.exp(term - largest) for term in terms))

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
    """2^x of float32, right to 2e-7 of itself; beyond -126 and 127 it stays at 2^-126 and 2^127."""
    x = jnp.clip(x, -126.0, 127.0)
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

GAUSSIAN_MIXTURE = Density(
    gaussian_mixture(MIXTURE_WEIGHTS, MIXTURE_LOCS, MIXTURE_SCALES), num_dims=1
)
CORRELATED_GAUSSIAN = Density(correlated_gaussian(10, 0.9), num_dims=10, start_scale=3.0)


def check_density(logdensity_fn: LogDensityFn, num_chains: int, num_dims: int) -> None:
    """Refuses a log density that does not map positions [C, D] to [C]; nothing is computed."""
    if num_dims < 1:
        raise InputError(f"num_dims={num_dims} must be at least 1: a position has coordinates")
    # A sum over the wrong axis has the right shape where C is D.
    shape = num_chains + (num_chains == num_dims), num_dims
    try:
        found = jax.eval_shape(logdensity_fn, jax.ShapeDtypeStruct(shape, jnp.float32))
    except Exception as error:
        raise InputError(
            f"the log density of positions {list(shape)} raises {type(error).__name__}: "
            f"{in_one_line(error)}; it must take [C, D], all chains at once"
        ) from error
    if getattr(found, "shape", None) != shape[:1]:
        raise InputError(
            f"the log density of positions {list(shape)} has the shape "
            f"{list(getattr(found, 'shape', ()))}, must be [{shape[0]}]: one number for each "
            "chain; sum over the last axis"
        )
    if jnp.issubdtype(found.dtype, jnp.complexfloating):
        raise InputError(f"the log density is {found.dtype}, must be real; take its real part")
