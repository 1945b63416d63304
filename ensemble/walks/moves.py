"""What a random walk's moves look like: a factor by which standard normal numbers are multiplied.

It is a number, a standard deviation for each dimension, or the lower triangle of a covariance.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.errors import InputError


def factor_of(scale: Any, num_dims: int) -> jax.Array:
    """What normal numbers are multiplied by, for a scale, [D] of them or a covariance [D, D].

    Raises:
        InputError: the scale has another shape, or numbers that float32 or no move can have.
    """
    values = np.asarray(scale, np.float64)
    shapes = ((), (num_dims,), (num_dims, num_dims))
    if values.shape not in shapes:
        raise InputError(
            f"a scale of the shape {values.shape} must be a number, [{num_dims}] standard "
            f"deviations or a covariance [{num_dims}, {num_dims}]"
        )
    if values.ndim == 2:
        values = _triangle_of(values)
    deviations = np.diag(values) if values.ndim == 2 else values
    limits = np.finfo(np.float32)
    if not ((deviations >= limits.tiny) & (deviations <= limits.max)).all():
        raise InputError(
            f"scale={scale} must be positive and finite, as float32 too: from {limits.tiny:.1e} to "
            f"{limits.max:.1e}"
        )
    return jnp.asarray(values, jnp.float32)


def _triangle_of(covariance: np.ndarray) -> np.ndarray:
    """The lower triangle whose product with its transpose is a covariance [D, D]."""
    if not np.isfinite(covariance).all():
        raise InputError("a scale that is a covariance must be finite")
    # By standard deviations, which may differ by much.
    spread = np.sqrt(np.abs(np.diag(covariance)))
    if (np.abs(covariance - covariance.T) > 1e-5 * np.outer(spread, spread)).any():
        raise InputError("a scale that is a covariance must be symmetric; use (A + A.T) / 2")
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise InputError("a scale that is a covariance must be positive definite") from None


def as_shape(factor: jax.Array, num_dims: int, shape: str) -> jax.Array:
    """The same moves, written with as many numbers as a value of `SHAPES` at least."""
    values = np.asarray(factor)
    if shape != "identity" and values.ndim == 0:
        values = np.full(num_dims, values)
    if shape == "dense" and values.ndim == 1:
        values = np.diag(values)
    return jnp.asarray(values)


def shape_of(points: np.ndarray, shape: str) -> jax.Array:
    """The standard deviations, or the triangle of the covariance, of points [N, D]."""
    points = points.astype(np.float64)
    spread = points.std(axis=0)
    spread = np.where(spread > 0, spread, 1)
    if shape == "diagonal":
        return jnp.asarray(spread, jnp.float32)
    count, num_dims = points.shape
    correlation = (points - points.mean(axis=0)) / spread
    correlation = correlation.T @ correlation / count
    # A few points say little: towards no correlation, which is positive definite too.
    share = count / (count + num_dims)
    shrunk = share * correlation + (1 - share) * np.eye(num_dims)
    return jnp.asarray(spread[:, None] * np.linalg.cholesky(shrunk), jnp.float32)
