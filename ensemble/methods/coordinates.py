"""Coordinates in which a posterior is easier to sample: kernels move in z, networks see params.

A linear map adds a constant to the log density, so HMC with identity mass in z is HMC with the
mass matrix of the map in the parameters. For multinomial logistic regression the Hessian of the
negative log posterior is nearly a Kronecker product plus the prior's precision (Martens & Grosse
2015, arXiv:1503.05671, sections 2 and 6.3), whose inverse root costs two small products:

    H ~ A (x) F + 1/sd^2,   A = sum_i w_i x_i x_i' / sum_i w_i,   F = sum_i (diag(p_i) - p_i p_i')

with x_i the inputs and a 1 for the bias, p_i the probabilities at the MAP and w_i the trace of what
F sums. Where the product takes the likelihood for stiffer than it is, chains would crawl: the
directions of the least curvature that is left are found by LOBPCG, and stretched.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ensemble.data.source import Examples
from ensemble.priors import prior_of
from ensemble.task import Learned
from ensemble.tasks.linear_likelihood import join_bias, split_bias, with_bias
from ensemble.tasks.supervised import Supervised

_BLOCK = 8192  # Examples at a time.
_ITERATIONS = 12


Coordinates = Mapping[str, Any]
"""Arrays of an invertible linear map between z and the parameters of one network.

The weights and the bias below them are one matrix [R, C], and params = location +
sd * (left @ (scale * stretched(z)) @ right').

- `location` [R, C], where z = 0 is
- `sd` [R], of the prior
- `left` [R, R], orthogonal
- `scale` [R, C]
- `right` [C, C], orthogonal
- `directions` [K, R, C], orthonormal, along which z is stretched
- `stretch` [K]
"""


def to_params(coordinates: Coordinates | None, z: Any) -> Any:
    """Maps a tree z to the tree of parameters, of the same structure; without coordinates, z."""
    if coordinates is None:
        return z
    one = coordinates
    stretched = _stretched(join_bias(z), one["directions"], one["stretch"])
    moved = _product(one["left"], one["scale"] * stretched, one["right"].T)
    return split_bias(one["location"] + one["sd"][:, None] * moved, z)


def from_params(coordinates: Coordinates | None, params: Any) -> Any:
    """Maps a tree of parameters to z, of the same structure."""
    if coordinates is None:
        return params
    one = coordinates
    centred = (join_bias(params) - one["location"]) / one["sd"][:, None]
    stretched = _product(one["left"].T, centred, one["right"]) / one["scale"]
    return split_bias(_stretched(stretched, one["directions"], 1 / one["stretch"]), params)


def as_regression(task: Learned) -> Supervised | None:
    """Returns the task, if it is multinomial logistic regression, whose curvature is known."""
    return task if isinstance(task, Supervised) and task.is_softmax_regression else None


def kronecker(
    regression: Supervised,
    split: Examples,
    params: Any,
    temperature: float = 1.0,
    num_stretched: int = 64,
) -> Coordinates:
    """Whitens the posterior of a logistic regression by Laplace's approximation at `params`.

    There z is nearly N(0, I). Computed on the host.

    Args:
        regression: logistic regression, with a prior; a Laplace prior counts as a normal one of its
            variance.
        split: the N examples to condition on.
        params: tree at which the curvature is taken, the MAP, and where z = 0 will be.
        temperature: of the likelihood.
        num_stretched: directions at most; a tenth of the parameters if that is less.
    """
    location = np.asarray(join_bias(params), np.float64)
    sd = _prior_sd(regression, params)
    inputs_moment, fisher = _curvature(regression, split, location)
    input_values, left = np.linalg.eigh(sd[:, None] * inputs_moment * sd)
    class_values, right = np.linalg.eigh(fisher / temperature)
    # Rounding leaves values a little below zero.
    curvature = np.outer(np.maximum(input_values, 0), np.maximum(class_values, 0))
    scale = 1 / np.sqrt(curvature + 1)
    directions = np.zeros((0, *scale.shape))
    stretch = np.zeros(0)
    if num_stretched:
        hessian = _hessian_product(regression, split, location, temperature)
        directions, stretch = _least_curvature(hessian, sd, left, scale, right, num_stretched)
    arrays = {
        "location": location,
        "sd": sd,
        "left": left,
        "scale": scale,
        "right": right,
        "directions": directions,
        "stretch": stretch,
    }
    return {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}


def _stretched(z: jax.Array, directions: jax.Array, stretch: jax.Array) -> jax.Array:
    """Stretches z [R, C] along the directions."""
    with jax.default_matmul_precision("highest"):
        along = jnp.tensordot(directions, z, axes=2)
        return z + jnp.tensordot((stretch - 1) * along, directions, axes=1)


def _hessian_product(
    regression: Supervised, split: Examples, params: np.ndarray, temperature: float
) -> Callable[[np.ndarray], np.ndarray]:
    """The Hessian of the negative log likelihood at params times [R, C, K], of the same shape."""
    blocks = []
    for inputs in _blocks(regression, split):
        blocks.append((inputs, scipy.special.softmax(inputs @ params.astype(np.float32), axis=1)))

    def product(vectors: np.ndarray) -> np.ndarray:
        vectors = vectors.astype(np.float32)
        total = np.zeros_like(vectors)
        for inputs, probs in blocks:
            logits = (inputs @ vectors.reshape(len(vectors), -1)).reshape(-1, *vectors.shape[1:])
            logits -= np.einsum("nc,nck->nk", probs, logits)[:, None]
            logits *= probs[:, :, None]
            total += (inputs.T @ logits.reshape(len(inputs), -1)).reshape(vectors.shape)
        return total / temperature

    return product


def _least_curvature(
    hessian: Callable[[np.ndarray], np.ndarray],
    sd: np.ndarray,
    left: np.ndarray,
    scale: np.ndarray,
    right: np.ndarray,
    num_directions: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Directions [K, R, C] in which the posterior's Hessian in z is least, and their stretch [K].

    A few iterations find them well enough: whatever the directions are, the map is what it is.
    """
    left = left.astype(np.float32)
    right = right.astype(np.float32)
    shape = scale.shape
    size = scale.size

    def in_z(vectors: np.ndarray) -> np.ndarray:
        vectors = scale[:, :, None] * vectors.reshape(*shape, -1)
        params = np.einsum("ij,jck,dc->idk", left, vectors, right, optimize=True)
        grads = sd[:, None, None] * hessian(sd[:, None, None] * params) + params
        grads = np.einsum("ij,idk,dc->jck", left, grads, right, optimize=True)
        return (scale[:, :, None] * grads).reshape(size, -1)

    operator = scipy.sparse.linalg.LinearOperator(
        (size, size), matvec=lambda v: in_z(v)[:, 0], matmat=in_z, dtype=float
    )
    count = min(num_directions, max(1, size // 10))
    start = np.random.default_rng(0).normal(size=(size, count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It says that it could go on.
        values, vectors = scipy.sparse.linalg.lobpcg(
            operator, start, largest=False, maxiter=_ITERATIONS, tol=1e-2
        )
    return vectors.T.reshape(-1, *shape), 1 / np.sqrt(np.maximum(values, 1e-6))


def _product(*factors: jax.Array) -> jax.Array:
    # From the narrow end; TPUs and TF32 would round otherwise.
    first, second, third = factors
    with jax.default_matmul_precision("highest"):
        return first @ (second @ third)


def _prior_sd(regression: Supervised, params: Any) -> np.ndarray:
    """[R], the prior's standard deviation of the weights of every input, and of the bias last."""
    sds = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.full(
            leaf.shape, prior_of(regression.priors, path).standard_deviation(leaf.shape)
        ),
        params,
    )
    return np.asarray(join_bias(sds), np.float64)[:, 0]


def _blocks(regression: Supervised, split: Examples) -> Iterator[np.ndarray]:
    """Blocks of inputs as the network sees them, flat, and a 1: [n, R]."""
    for start in range(0, len(split.targets), _BLOCK):
        yield with_bias(regression.dataset, split, slice(start, start + _BLOCK))


def _curvature(
    regression: Supervised, split: Examples, params: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A [R, R] and F [C, C] of the module's docstring, at params [R, C]."""
    num_rows, num_outputs = params.shape
    moment = np.zeros((num_rows, num_rows))
    fisher = np.zeros((num_outputs, num_outputs))
    for inputs in map(np.float64, _blocks(regression, split)):
        probs = scipy.special.softmax(inputs @ params, axis=1)
        roots = np.sqrt(np.maximum(1 - np.sum(probs**2, axis=1), 0))
        weighted = roots[:, None] * inputs
        moment += weighted.T @ weighted
        fisher += np.diag(probs.sum(axis=0)) - probs.T @ probs
    return moment / np.trace(fisher), fisher
