"""Where chains start: a draw of the prior, or the maximum of the posterior (MAP)."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from absl import logging
from jax.flatten_util import ravel_pytree

from ensemble.classification import Classification
from ensemble.errors import UserError
from ensemble.members import create_member
from ensemble.posterior import linear
from ensemble.posterior.coordinates import Coordinates, identity, kronecker
from ensemble.posterior.log_density import LogDensity
from ensemble.priors import Prior, prior_of

_LOG_EVERY = 50  # Iterations.


def sample_prior(rng_key: jax.Array, priors: tuple[Prior, ...], params_template: Any) -> Any:
    """Draws parameters from the prior.

    Args:
        rng_key: of the chain.
        priors: of `ensemble.priors.parse_prior`.
        params_template: tree of arrays or of their shapes; the draw's structure.

    Raises:
        UserError: there are no priors, or a parameter belongs to no group.
    """
    if not priors:
        raise UserError(
            "config.prior='none' has nothing to draw a start from; set config.prior='normal(1)', "
            "or another start"
        )
    leaves, structure = jax.tree_util.tree_flatten_with_path(params_template)
    draws = [
        prior_of(priors, path).sample(jax.random.fold_in(rng_key, k), leaf.shape)
        for k, (path, leaf) in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, draws)


def find_map(
    task: Classification, density: LogDensity, params_template: Any, max_iterations: int = 1000
) -> Any:
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends where float32 can no longer tell a step's gain from rounding, or at the limit. Logistic
    regression starts from zero, and is searched in coordinates that whiten there. Other networks
    start as a member does, and end at one of several maxima.

    Args:
        task: network and prior.
        density: of `make_log_density`.
        params_template: tree of arrays or of their shapes.
        max_iterations: limit.

    Returns:
        The parameters at the maximum.

    Raises:
        UserError: the log density is not finite at the start.
    """
    coordinates = identity()
    if linear.is_linear(task.model):
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params_template)
        if task.priors:
            coordinates = kronecker(task, task.dataset.splits["train"], params)
    else:
        shape = task.dataset.input_shape
        params = create_member(jax.random.key(0), task.model, optax.identity(), shape).params
    flat, unravel = ravel_pytree(coordinates.from_params(params))

    @jax.jit
    def value_and_grad(
        flat: jax.Array, coordinates: Coordinates, data: Any
    ) -> tuple[jax.Array, jax.Array]:
        logdensity_fn = density.bind(data)
        return jax.value_and_grad(lambda flat: logdensity_fn(coordinates.to_params(unravel(flat))))(
            flat
        )

    num_calls = 0

    def objective(position: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_calls
        num_calls += 1
        flat = jnp.asarray(position, jnp.float32)
        value, grads = value_and_grad(flat, coordinates, density.data)
        return -float(value), -np.asarray(grads, np.float64)

    started = time.perf_counter()
    if not np.isfinite(objective(np.asarray(flat, np.float64))[0]):
        raise UserError("the log density is not finite where the search for the MAP starts")
    iteration = 0

    def log_progress(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        nonlocal iteration
        iteration += 1
        if iteration % _LOG_EVERY == 0:
            value = -intermediate_result.fun
            logging.info("MAP: iteration %d, log density %.2f nats", iteration, value)

    result = scipy.optimize.minimize(
        objective,
        np.asarray(flat, np.float64),
        jac=True,
        method="L-BFGS-B",
        callback=log_progress,
        options={"maxiter": max_iterations, "maxfun": 2 * max_iterations, "ftol": 1e-9, "gtol": 0},
    )
    logging.info(
        "MAP: log density %.2f nats after %d iterations, %d gradients, %.1f s",
        -result.fun,
        result.nit,
        num_calls,
        time.perf_counter() - started,
    )
    return coordinates.to_params(unravel(jnp.asarray(result.x, jnp.float32)))
