"""Filters whose neighbouring weights are alike: `correlated_normal(sd, length=1)`.

The weights of one filter of a convolution, from one channel to another, are a Gaussian process
over the filter's positions, with covariance sd^2 exp(-distance / length), distances in pixels
(Fortuin et al. 2021, "Bayesian Neural Network Priors Revisited"). Filters are independent.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.priors.family import Setting

_NUM_CHANNEL_AXES = 2
"""The last axes of a kernel: channels in, and channels out."""


class CorrelatedNormal:
    """Normal values with standard deviation `scale`, correlated over the positions of a filter.

    Parameters of at most two axes have no positions: their values are independent.
    """

    setting = Setting("length", lambda value: value <= 1e3, "must be at most 1000 pixels", "1")

    def log_density(self, values: jax.Array, scale: float, setting: float) -> jax.Array:
        """See `PriorFamily.log_density`."""
        root = _root(values.shape, setting)
        whitened = _product(np.linalg.inv(root), values)
        return -0.5 * jnp.sum(jnp.square(whitened / scale))

    def sample(
        self, rng_key: jax.Array, shape: tuple[int, ...], scale: float, setting: float
    ) -> jax.Array:
        """See `PriorFamily.sample`."""
        root = _root(shape, setting)
        return scale * _product(root, jax.random.normal(rng_key, shape)).reshape(shape)

    def standard_deviation(self, scale: float, setting: float) -> float:
        """See `PriorFamily.standard_deviation`."""
        return scale


def _product(matrix: np.ndarray, values: jax.Array) -> jax.Array:
    """A matrix [P, P] times the values [P, ...] at the positions of each filter, [P, filters]."""
    columns = values.reshape(len(matrix), -1)
    return jnp.matmul(jnp.asarray(matrix, jnp.float32), columns, precision="highest")


def _root(shape: tuple[int, ...], length: float) -> np.ndarray:
    """Lower triangular root [P, P] of the correlations of a filter's P positions."""
    positions = np.array(list(np.ndindex(shape[:-_NUM_CHANNEL_AXES])))
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    return np.linalg.cholesky(np.exp(-distances / length))
