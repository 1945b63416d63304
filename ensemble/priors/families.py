"""Families of priors: centred densities of the values of one parameter, of scale 1.

`setting` below is the number of a family besides its scale, as in `student_t(1, df=4)`; it is NaN
for a family without one. `log_density` is up to a constant, nats, of the values of one parameter.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np


class Normal:
    """Independent normal values; the scale is the standard deviation."""

    def log_density(self, values: jax.Array, setting: float) -> jax.Array:
        return -0.5 * jnp.sum(jnp.square(values))

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...], setting: float) -> jax.Array:
        return jax.random.normal(rng_key, shape)

    def standard_deviation(self, setting: float) -> float:
        return 1.0


class Laplace:
    """Independent values with a Laplace density; the scale is the mean absolute value."""

    def log_density(self, values: jax.Array, setting: float) -> jax.Array:
        return -jnp.sum(jnp.abs(values))

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...], setting: float) -> jax.Array:
        return jax.random.laplace(rng_key, shape)

    def standard_deviation(self, setting: float) -> float:
        return math.sqrt(2)


class StudentT:
    """Independent values with heavy tails: Student's t of `df` degrees of freedom."""

    def log_density(self, values: jax.Array, setting: float) -> jax.Array:
        return -0.5 * (setting + 1) * jnp.sum(jnp.log1p(jnp.square(values) / setting))

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...], setting: float) -> jax.Array:
        return jax.random.t(rng_key, setting, shape)

    def standard_deviation(self, setting: float) -> float:
        return math.sqrt(setting / (setting - 2))


class CorrelatedNormal(Normal):
    """Normal values of a filter whose neighbouring weights are alike; filters are independent.

    The weights from one channel to another are a Gaussian process over the filter's positions, with
    covariance exp(-distance / length), distances in pixels (Fortuin et al. 2021,
    "Bayesian Neural Network Priors Revisited"). Values of at most two axes are independent.
    """

    def log_density(self, values: jax.Array, setting: float) -> jax.Array:
        root = _root(values.shape, setting)
        return super().log_density(_product(np.linalg.inv(root), values), setting)

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...], setting: float) -> jax.Array:
        values = jax.random.normal(rng_key, shape)
        return _product(_root(shape, setting), values).reshape(shape)


def _product(matrix: np.ndarray, values: jax.Array) -> jax.Array:
    """A matrix [P, P] times the values [P, ...] at the positions of each filter, [P, filters]."""
    columns = values.reshape(len(matrix), -1)
    return jnp.matmul(jnp.asarray(matrix, jnp.float32), columns, precision="highest")


def _root(shape: tuple[int, ...], length: float) -> np.ndarray:
    """Lower triangular root [P, P] of the correlations of a filter's P positions."""
    positions = np.array(list(np.ndindex(shape[:-2])))  # The last axes are channels.
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    return np.linalg.cholesky(np.exp(-distances / length))
