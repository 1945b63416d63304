"""Chains start at draws of the prior, around a maximum, or at what another run has found.

A posterior may be easier to sample in other coordinates: kernels move in z, networks see params. A
linear map adds a constant to the log density, so HMC with identity mass in z is HMC with the mass
matrix of the map in the parameters. For multinomial logistic regression the Hessian of the negative
log posterior is nearly a Kronecker product plus the prior's precision (Martens & Grosse 2015,
arXiv:1503.05671, sections 2 and 6.3), whose inverse root costs two small products:

    H ~ A (x) F + 1/sd^2,   A = sum_i w_i x_i x_i' / sum_i w_i,   F = sum_i (diag(p_i) - p_i p_i')

with x_i the inputs and a 1 for the bias, p_i the probabilities at the MAP and w_i the trace of what
F sums. Where the product takes the likelihood for stiffer than it is, chains would crawl: the
directions of the least curvature that is left are found by LOBPCG, and stretched.
"""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, random
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config import Config
from ensemble.config.builtin import MAP, PRIOR, STARTS, UNIFORM
from ensemble.data.source import Examples, in_memory
from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.methods.given_weights import check_number, fitting, named, read
from ensemble.priors import prior_of
from ensemble.runtime.algorithm import Start
from ensemble.sharding import processes, signals, transfer
from ensemble.sharding.mesh import compiled_soon
from ensemble.storage.workdir import Workdir
from ensemble.task import LogDensity, Modelled
from ensemble.tasks.linear_likelihood import join_bias, split_bias, with_bias
from ensemble.tasks.supervised import Supervised

_MAP_ITERATIONS = 1000
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


def _stretched(z: Array, directions: Array, stretch: Array) -> Array:
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


def _curvature(blocks: list[NDArray], params: NDArray) -> tuple[NDArray, NDArray]:
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


def _least_curvature(
    blocks: list[NDArray], whitened: Coordinates, temperature: float, most: int
) -> dict[str, NDArray]:
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


def starting_points(config: Config, task, density: LogDensity) -> Start:
    """Finds the coordinates in which chains move, and where they start.

    Chains that start at the MAP, which only the Kronecker mass has, start at draws of its Laplace
    approximation, so that R-hat can see whether they have forgotten their starts.

    Args:
        config: Configuration of the run.
        task: What is sampled.
        density: Log density of the posterior.

    Returns:
        The coordinates, which all chains share, and positions [C, ...] in them.

    Raises:
        InputError: `config.init_from` does not suit this run, or the mass the network.
    """

    @compiled_soon
    def keys_of(numbers):
        return jax.vmap(random.split)(pytrees.keys_of(random.key(config.seed), numbers))[:, 0]

    keys = keys_of(np.arange(config.num_chains))
    origin = config.init_from
    whitens = config.sampler.mass_matrix == "kronecker"
    # What is refused is said before the long search.
    if whitens and not getattr(task, "is_softmax_regression", False):
        raise InputError(
            "config.sampler.mass_matrix='kronecker' needs a linear model: "
            "config.model='logistic_regression'. Use 'identity', 'diagonal', 'low_rank' or 'dense'"
        )
    shapes = task.params_shapes()
    coordinates = None
    if origin not in STARTS:
        params = given_starts(config, task)
    elif isinstance(task, Modelled):
        params = task.starts(keys, from_prior=origin == PRIOR)
    elif origin == UNIFORM:
        raise InputError(
            f"config.init_from='{UNIFORM}' is for log densities. Use '{PRIOR}' or a workdir"
        )
    else:
        params = compiled_soon(jax.vmap(task.sample_prior))(keys)
    if whitens:
        maximum = find_map(task, density)
        train = in_memory(task.dataset, "train")
        coordinates = kronecker(task, train, maximum, config.posterior_temperature)
    if origin == MAP:
        found = compiled_soon(jax.vmap(lambda key: pytrees.standard_normal(key, shapes)))(keys)
    else:
        found = compiled_soon(jax.vmap(partial(from_params, coordinates)))(params)
    coordinates, found = processes.tree_from_main((coordinates, found))
    return Start(coordinates, density.layout.pad(found, axis=1))


def given_starts(config: Config, task: Supervised | Modelled):
    """Reads the parameters [C, ...] of a run's first live members or chains, or of a file.

    Chains give their last draws. A file of weights is one member.

    Raises:
        InputError: They do not fit the network or model, or are too few, or impossible here.
    """
    what = f"config.init_from={config.init_from!r}"
    if isinstance(task, Modelled):
        kept, _ = Draws(Workdir(config.init_from).draws).positions()
        if not kept:
            raise InputError(f"{what} is not a workdir with draws; use one of this model")
        found = named(pytrees.at(kept, np.s_[:, -1]))
    else:
        found = read(config.init_from, what)
    shapes = task.params_shapes()
    own = named(shapes)
    fits = fitting(found, own, own, what, str(config.model))
    leaves = [jnp.asarray(fits[name][: config.num_chains]) for name in own]
    check_number(config, len(leaves[0]), "num_chains")
    starts = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    if isinstance(task, Modelled):
        task.check_starts(starts)
    return starts


def find_map(task, density: LogDensity):
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends where float32 can no longer tell a step's gain from rounding, or at the limit. Logistic
    regression starts from zero, and is searched in coordinates that whiten there. Other networks
    start as a member does, and end at one of several maxima.

    Args:
        task: Network and prior.
        density: Result of `make_log_density`.

    Returns:
        The parameters at the maximum.
    """
    coordinates = None
    params = task.init_variables(random.key(0))["params"]
    if getattr(task, "is_softmax_regression", False):
        params = jax.tree.map(jnp.zeros_like, params)
        # There the Kronecker form is exact: nothing is left to stretch.
        train = in_memory(task.dataset, "train")
        coordinates = processes.tree_from_main(kronecker(task, train, params, 1.0, 0))
    flat_start, unravel = ravel_pytree(from_params(coordinates, params))

    @jax.jit
    @jax.value_and_grad
    def of_flat(flat, coordinates, data):
        moved = to_params(coordinates, unravel(flat))
        return density.bind(data)(density.layout.pad(moved))

    def objective(position):
        signals.check()
        flat = jnp.asarray(position, jnp.float32)
        value, grad = transfer.fetch(of_flat(flat, coordinates, density.data))
        return -float(value), -np.asarray(grad, np.float64)

    start = np.asarray(flat_start, np.float64)
    limits = {"maxiter": _MAP_ITERATIONS, "maxfun": 2 * _MAP_ITERATIONS, "ftol": 1e-9, "gtol": 0}
    result = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=limits)
    params = to_params(coordinates, unravel(jnp.asarray(result.x, jnp.float32)))
    return processes.tree_from_main(params)
