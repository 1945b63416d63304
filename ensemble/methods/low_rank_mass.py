"""A mass of low rank: a scale of every parameter, and a few directions that are wider or narrower.

It costs as much as a diagonal one up to a factor, for any number of parameters, and follows
correlations. It is found from draws and their gradients together, by Seyboldt et al. (2026),
"Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence", algorithm 1: on a normal
density, as many draws as there are parameters tell the covariance without an error.

The devices keep the draws of a window. Where it ends, the host computes the mass, chain by chain in
float64: products of covariances of draws and of gradients have few digits left in float32.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.sharding import processes

MAX_RANK = 10
_CUTOFF = 2.0
"""Directions whose variance is right up to this factor stay as they are."""
_GAMMA = 1e-5
"""What is added to sums of squares, of which nothing is known in some directions."""


class LowRankMass(NamedTuple):
    """The mass of a chain, and what the window has seen so far. P parameters, K directions.

    Attributes:
        inverse_mass_matrix: in use: `sigma` [P], `U` [P, K] and `lam` [K].
        draws: [W, P], of the last W draws, as many as the longest window has: draw t at t modulo W.
        grads: [W, P], of the log density.
    """

    inverse_mass_matrix: LowRankInverseMassMatrix
    draws: Any
    grads: Any


def start(num_params: int, num_places: int) -> LowRankMass:
    """The identity.

    Args:
        num_params: P.
        num_places: W.
    """
    rank = min(MAX_RANK, num_params)
    identity = LowRankInverseMassMatrix(
        jnp.ones(num_params), jnp.zeros((num_params, rank)), jnp.ones(rank)
    )
    nothing = jnp.zeros((num_places, num_params))
    return LowRankMass(identity, nothing, nothing)


def keep(mass: LowRankMass, place: jax.Array, state: HMCState) -> LowRankMass:
    """Keeps a draw.

    Args:
        mass: Mass of a chain.
        place: Place of the draw; W for a draw that is not kept.
        state: The draw, with the gradient of the log density.
    """
    draw, grad = (ravel_pytree(one)[0] for one in (state.position, state.logdensity_grad))
    # A write to where nothing is, which costs less than a choice between two whole arrays.
    return mass._replace(
        draws=mass.draws.at[place].set(draw, mode="drop"),
        grads=mass.grads.at[place].set(grad, mode="drop"),
    )


def estimate(ends: Mapping[int, int], step: int, chains):
    """Ends a window, on the host.

    Args:
        ends: Result of `ensemble.methods.warmup.window_ends`.
        step: Draw after which a window ends.
        chains: `ensemble.methods.kernels.Chain` [C, ...].

    Returns:
        The same with the mass for the next window.
    """
    masses = chains.adaptation.mass
    window = np.arange(step - ends[step], step) % masses.draws.shape[1]
    found = []
    for before, draws, grads in (pytrees.at(masses, k) for k in range(len(masses.draws))):
        found.append(fit(draws[window], grads[window], before))
    # Processes that share a chain may round differently.
    inverse = processes.tree_from_main(jax.tree.map(lambda *each: np.stack(each), *found))
    mass = masses._replace(inverse_mass_matrix=inverse)
    return chains._replace(adaptation=chains.adaptation._replace(mass=mass))


def fit(
    draws: NDArray, grads: NDArray, before: LowRankInverseMassMatrix
) -> LowRankInverseMassMatrix:
    """Finds the inverse mass D (I + U (lam - I) U') D, D = diag(sigma), for which gradients vary
    as draws do.

    Args:
        draws: [N, P] float32.
        grads: [N, P], of the log density.
        before: the mass so far. It stays where a number is not finite, and so does the sigma of a
            parameter that has not moved, or whose gradient has not.

    Returns:
        float32; of directions in which `sigma` alone is right, `lam` is 1.
    """
    if not (np.isfinite(draws).all() and np.isfinite(grads).all()):
        return before
    x, g = (one - one.mean(axis=0) for one in (np.float64(draws), np.float64(grads)))
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = ((x**2).sum(axis=0) / (g**2).sum(axis=0)) ** 0.25
    sigma = np.where(np.isfinite(sigma) & (sigma > 0), sigma, before.sigma)
    x = x / sigma
    g = g * sigma
    rank = before.lam.size
    # The matrix is computed where draws, or their gradients, vary most.
    basis = np.linalg.qr(np.concatenate([_main_directions(one, rank) for one in (x, g)]).T)[0]
    inside = [one @ basis for one in (x, g)]
    number = basis.shape[1]
    # Sums of squares and products, in units of what is added to them.
    squares = (one.T @ one / _GAMMA + np.eye(number) for one in inside)
    values, vectors = _spectrum(_geometric_mean(*squares))
    # What most directions have in common is no direction, but a scale.
    common = np.median(values)
    if len(sigma) > number:  # The one variance that fits all directions outside.
        sums = np.sum(x**2) - np.sum(inside[0] ** 2), np.sum(g**2) - np.sum(inside[1] ** 2)
        common = np.sqrt(np.divide(*sums)) if min(sums) > 0 else 1.0
    values /= common
    chosen = np.sort(np.argsort(-np.abs(np.log(values)))[:rank])
    values = values[chosen]
    vectors = basis @ vectors[:, chosen]
    is_far = (values < 1 / _CUTOFF) | (values > _CUTOFF)
    found = sigma * common**0.5, vectors, np.where(is_far, values, 1)
    return LowRankInverseMassMatrix(*map(np.float32, found))


def _main_directions(rows: NDArray, count: int) -> NDArray:
    """The directions [K, P] in which rows [N, P] vary most, so many at most."""
    rows = np.linalg.qr(rows, mode="r")  # [min(N, P), P], which vary as the rows do.
    last = len(rows) - 1
    span = max(last - count + 1, 0), last
    # Less work than singular values.
    values, vectors = scipy.linalg.eigh(rows @ rows.T, subset_by_index=span)
    limits = np.finfo(np.float64)
    roots = np.sqrt(np.maximum(values, limits.eps * values[-1] + limits.tiny))
    return vectors.T @ rows / roots[:, None]


def _geometric_mean(of_draws: NDArray, of_grads: NDArray) -> NDArray:
    """The positive definite G with G of_grads G = of_draws."""
    values, vectors = _spectrum(of_grads)
    root = vectors * values**0.5
    inverse = vectors / values**0.5
    values, vectors = _spectrum(root.T @ of_draws @ root)
    half = inverse @ vectors * values**0.25
    return half @ half.T


def _spectrum(matrix: NDArray) -> tuple[NDArray, NDArray]:
    """Eigenvalues and eigenvectors of a positive definite matrix; rounding may say otherwise."""
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, np.finfo(np.float64).eps * values.max()), vectors
