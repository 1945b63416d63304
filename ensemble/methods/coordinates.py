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
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ensemble.data.source import Examples
from ensemble.priors import prior_of
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


def to_params(coordinates: Coordinates | None, z):
    """Maps a tree z to the tree of parameters, of the same structure; without coordinates, z."""
    if coordinates is None:
        return z
    one = coordinates
    with jax.default_matmul_precision("highest"):  # TPUs and TF32 would round otherwise.
        stretched = _stretched(join_bias(z), one["directions"], one["stretch"])
        moved = one["left"] @ ((one["scale"] * stretched) @ one["right"].T)
    return split_bias(one["location"] + one["sd"][:, None] * moved, z)


def from_params(coordinates: Coordinates | None, params):
    """Maps a tree of parameters to z, of the same structure."""
    if coordinates is None:
        return params
    one = coordinates
    centred = (join_bias(params) - one["location"]) / one["sd"][:, None]
    with jax.default_matmul_precision("highest"):
        scaled = (one["left"].T @ (centred @ one["right"])) / one["scale"]
        return split_bias(_stretched(scaled, one["directions"], 1 / one["stretch"]), params)


def _stretched(z, directions, stretch):
    """Stretches z [R, C] along the directions."""
    along = jnp.tensordot(directions, z, axes=2)
    return z + jnp.tensordot((stretch - 1) * along, directions, axes=1)


def kronecker(
    regression: Supervised,
    split: Examples,
    params,
    temperature: float = 1.0,
    num_stretched: int = 64,
) -> Coordinates:
    """Whitens the posterior of a logistic regression by Laplace's approximation at `params`.

    There z is nearly N(0, I). Computed on the host.

    Args:
        regression: Logistic regression with a prior; a Laplace prior counts as a normal one of its
            variance.
        split: The N examples to condition on.
        params: Tree at which the curvature is taken, the MAP, and where z = 0 will be.
        temperature: Temperature of the likelihood.
        num_stretched: Most directions; a tenth of the parameters if that is less.
    """
    location = np.asarray(join_bias(params), np.float64)
    sds = jax.tree.map_with_path(
        lambda path, leaf: np.full(
            leaf.shape, prior_of(regression.priors, path).standard_deviation(leaf.shape)
        ),
        params,
    )
    sd = np.asarray(join_bias(sds), np.float64)[:, 0]
    # Inputs as the network sees them, flat, and a 1 for the bias: [n, R].
    blocks = [
        with_bias(regression.dataset, split, slice(start, start + _BLOCK))
        for start in range(0, len(split.targets), _BLOCK)
    ]
    moment, fisher = _curvature(blocks, location)
    input_values, left = np.linalg.eigh(sd[:, None] * moment * sd)
    class_values, right = np.linalg.eigh(fisher / temperature)
    # Rounding leaves values a little below zero.
    curvature = np.outer(np.maximum(input_values, 0), np.maximum(class_values, 0))
    scale = 1 / np.sqrt(curvature + 1)
    arrays = {
        "location": location,
        "sd": sd,
        "left": left,
        "scale": scale,
        "right": right,
        "directions": np.zeros((0, *scale.shape)),
        "stretch": np.zeros(0),
    }
    if num_stretched:
        arrays |= _least_curvature(blocks, arrays, temperature, num_stretched)
    return {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}


def _curvature(blocks, params):
    """Returns A [R, R] and F [C, C] of the module's docstring, at params [R, C]."""
    num_rows, num_outputs = params.shape
    moment = np.zeros((num_rows, num_rows))
    fisher = np.zeros((num_outputs, num_outputs))
    for inputs in map(np.float64, blocks):
        probs = scipy.special.softmax(inputs @ params, axis=1)
        roots = np.sqrt(np.maximum(1 - np.sum(probs**2, axis=1), 0))
        weighted = roots[:, None] * inputs
        moment += weighted.T @ weighted
        fisher += np.diag(probs.sum(axis=0)) - probs.T @ probs
    return moment / np.trace(fisher), fisher


def _least_curvature(blocks, whitened, temperature, most):
    """Returns `directions` in which the posterior's Hessian in z is least, and their `stretch`.

    A few iterations find them well enough: whatever the directions are, the map is what it is.
    """
    left, right = (whitened[name].astype(np.float32) for name in ("left", "right"))
    scale = whitened["scale"][:, :, None]
    sd = whitened["sd"][:, None, None]
    location = whitened["location"].astype(np.float32)
    shape = location.shape
    probs = [scipy.special.softmax(inputs @ location, axis=1) for inputs in blocks]

    def in_z(vectors):
        """The Hessian of the negative log posterior times [R * C, K]."""
        vectors = scale * vectors.reshape(*shape, -1)
        params = np.einsum("ij,jck,dc->idk", left, vectors, right, optimize=True)
        moved = (sd * params).astype(np.float32)
        total = np.zeros_like(moved)
        for inputs, one in zip(blocks, probs, strict=True):
            logits = np.tensordot(inputs, moved, 1)
            logits -= np.einsum("nc,nck->nk", one, logits)[:, None]
            logits *= one[:, :, None]
            total += np.tensordot(inputs.T, logits, 1)
        grads = sd * (total / temperature) + params
        grads = np.einsum("ij,idk,dc->jck", left, grads, right, optimize=True)
        return (scale * grads).reshape(location.size, -1)

    size = location.size
    start = np.random.default_rng(0).normal(size=(size, min(most, max(1, size // 10))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It says that it could go on.
        values, vectors = scipy.sparse.linalg.lobpcg(
            in_z, start, largest=False, maxiter=_ITERATIONS, tol=1e-2
        )
    stretch = 1 / np.sqrt(np.maximum(values, 1e-6))
    return {"directions": vectors.T.reshape(-1, *shape), "stretch": stretch}
