"""Coordinates in which a posterior is easier to sample: kernels move in z, networks see params.

A linear map adds a constant to the log density, so HMC with identity mass in z is HMC with the
mass matrix of the map in the parameters. For multinomial logistic regression the Hessian of the
negative log posterior is nearly a Kronecker product plus the prior's precision (Martens & Grosse
2015, arXiv:1503.05671, sections 2 and 6.3), whose inverse root costs two small products:

    H ~ A (x) F + 1/sd^2,   A = sum_i w_i x_i x_i' / sum_i w_i,   F = sum_i (diag(p_i) - p_i p_i')

with x_i the inputs and a 1 for the bias, p_i the probabilities at the MAP and w_i the trace of what
F sums.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ensemble.classification import Classification
from ensemble.errors import UserError
from ensemble.posterior.linear import is_linear, join_bias, split_bias
from ensemble.priors import prior_of
from input_pipeline import Split, normalise

_BLOCK = 8192  # Examples at a time, in float64.


class Coordinates(NamedTuple):
    """An invertible linear map between z and the parameters of one network, or the identity.

    The weights and the bias below them are one matrix [R, C], and params = location +
    sd * (left @ (scale * z) @ right').

    Attributes:
        location: [R, C], where z = 0 is; None: z are the parameters themselves.
        sd: [R], of the prior.
        left: [R, R], orthogonal.
        scale: [R, C].
        right: [C, C], orthogonal.
    """

    location: Any = None
    sd: Any = None
    left: Any = None
    scale: Any = None
    right: Any = None

    def to_params(self, z: Any) -> Any:
        """Maps a tree z to the tree of parameters, of the same structure."""
        if self.location is None:
            return z
        moved = _product(self.left, self.scale * join_bias(z), self.right.T)
        return split_bias(self.location + self.sd[:, None] * moved)

    def from_params(self, params: Any) -> Any:
        """Maps a tree of parameters to z, of the same structure."""
        if self.location is None:
            return params
        centred = (join_bias(params) - self.location) / self.sd[:, None]
        return split_bias(_product(self.left.T, centred, self.right) / self.scale)


def identity() -> Coordinates:
    """Coordinates that are the parameters."""
    return Coordinates()


def kronecker(
    task: Classification, split: Split, params: Any, temperature: float = 1.0
) -> Coordinates:
    """Whitens the posterior of a logistic regression by Laplace's approximation at `params`.

    There z is nearly N(0, I). Computed on the host in float64.

    Args:
        task: with a prior; a Laplace prior counts as a normal one of its variance.
        split: the N examples to condition on.
        params: tree at which the curvature is taken, the MAP, and where z = 0 will be.
        temperature: of the likelihood.

    Raises:
        UserError: the network is not linear, or the task has no prior.
    """
    if not is_linear(task.model):
        raise UserError(
            "hmc.mass='kronecker' needs a linear model: config.model='logistic_regression'; use "
            "identity, diagonal or dense"
        )
    if not task.priors:
        raise UserError(
            "hmc.mass='kronecker' needs a prior, for the likelihood alone is flat along some "
            "directions; set config.prior='normal(1)'"
        )
    location = np.asarray(join_bias(params), np.float64)
    sd = _prior_sd(task, params)
    inputs_moment, fisher = _curvature(task, split, location)
    input_values, left = np.linalg.eigh(sd[:, None] * inputs_moment * sd)
    class_values, right = np.linalg.eigh(fisher / temperature)
    # Rounding leaves values a little below zero.
    curvature = np.outer(np.maximum(input_values, 0), np.maximum(class_values, 0))
    arrays = (location, sd, left, 1 / np.sqrt(curvature + 1), right)
    return Coordinates(*(jnp.asarray(array, jnp.float32) for array in arrays))


def _product(*factors: jax.Array) -> jax.Array:
    # From the narrow end; TPUs and TF32 would round otherwise.
    first, second, third = factors
    with jax.default_matmul_precision("highest"):
        return first @ (second @ third)


def _prior_sd(task: Classification, params: Any) -> np.ndarray:
    """[R], the prior's standard deviation of the weights of every input, and of the bias last."""
    sds = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.full(
            leaf.shape, prior_of(task.priors, path).standard_deviation(leaf.shape)
        ),
        params,
    )
    return np.asarray(join_bias(sds), np.float64)[:, 0]


def _curvature(
    task: Classification, split: Split, params: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A [R, R] and F [C, C] of the module's docstring, at params [R, C]."""
    num_rows, num_classes = params.shape
    moment, fisher = np.zeros((num_rows, num_rows)), np.zeros((num_classes, num_classes))
    for start in range(0, len(split.labels), _BLOCK):
        raw = split.inputs[start : start + _BLOCK]
        inputs = np.asarray(normalise(raw, task.dataset.shift, task.dataset.scale), np.float64)
        inputs = np.pad(inputs.reshape(len(raw), -1), ((0, 0), (0, 1)), constant_values=1)
        probs = scipy.special.softmax(inputs @ params, axis=1)
        roots = np.sqrt(np.maximum(1 - np.sum(probs**2, axis=1), 0))
        weighted = roots[:, None] * inputs
        moment += weighted.T @ weighted
        fisher += np.diag(probs.sum(axis=0)) - probs.T @ probs
    trace = np.trace(fisher)
    if not math.isfinite(trace) or trace <= 0:
        raise UserError(
            f"hmc.mass='kronecker': the likelihood's curvature at the MAP is {trace}, and must be "
            "positive; use identity, diagonal or dense"
        )
    return moment / trace, fisher
