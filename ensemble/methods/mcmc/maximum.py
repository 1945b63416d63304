"""The maximum of a log density, and starts of chains around it: searched for on the host."""

import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ensemble.errors import UserError
from ensemble.methods.mcmc.log_density import LogDensity
from ensemble.sharding import signals, transfer

logger = logging.getLogger("ensemble")

ValueAndGrad = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""From a position [P] to nats and their gradient [P], in float64 on the host."""

SPREAD = 3.0
"""Standard deviations by which starts are spread around a maximum."""
_MOST_HALVINGS = 20
_NUM_PROBES = 32  # A power of 2.
_DIFFERENCE = 1e-2  # Of the size of a parameter.
_LOG_EVERY = 50  # Iterations.


def on_host(value_and_grad: Callable[..., Any], *arguments: Any) -> ValueAndGrad:
    """Makes a function on the host of `(flat [P], *arguments) -> (nats, gradient [P])`."""
    compiled = jax.jit(value_and_grad)

    def fetched(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = transfer.fetch(compiled(jnp.asarray(flat, jnp.float32), *arguments))
        return float(value), np.asarray(grad, np.float64)

    return fetched


def of_density(density: LogDensity, params: Any) -> ValueAndGrad:
    """The log density of parameters in one piece, without padding, as `ravel_pytree` joins them."""
    _, unravel = ravel_pytree(params)

    def of_flat(flat: jax.Array, data: Any) -> jax.Array:
        return density.bind(data)(density.layout.pad(unravel(flat)))

    return on_host(jax.value_and_grad(of_flat), density.data)


def maximise(
    value_and_grad: ValueAndGrad, start: np.ndarray, max_iterations: int
) -> "scipy.optimize.OptimizeResult":
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends where float32 can no longer tell a step's gain from rounding, or at the limit.

    Args:
        value_and_grad: of the log density.
        start: [P], where the search starts.
        max_iterations: limit.

    Returns:
        SciPy's result, of the negative log density.

    Raises:
        UserError: the log density is not finite at the start.
    """
    num_calls = 0

    def objective(position: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_calls
        num_calls += 1
        value, grad = value_and_grad(position)
        return -value, -grad

    started = time.perf_counter()
    if not np.isfinite(objective(start)[0]):
        raise UserError("the log density is not finite where the search for the MAP starts")
    iteration = 0

    def log_progress(intermediate_result: "scipy.optimize.OptimizeResult") -> None:
        nonlocal iteration
        signals.check()
        iteration += 1
        if iteration % _LOG_EVERY == 0:
            value = -intermediate_result.fun
            logger.info("MAP: iteration %d, log density %.2f nats", iteration, value)

    result = scipy.optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=log_progress,
        options={"maxiter": max_iterations, "maxfun": 2 * max_iterations, "ftol": 1e-9, "gtol": 0},
    )
    logger.info(
        "MAP: log density %.2f nats after %d iterations, %d gradients, %.1f s",
        -result.fun,
        result.nit,
        num_calls,
        time.perf_counter() - started,
    )
    return result


def spread(density: LogDensity, params: Any, rng_keys: jax.Array) -> Any:
    """Draws starts of chains around the MAP, more widely than the posterior is.

    Each parameter is moved by `SPREAD` standard deviations times a normal number. The deviations
    are those given all other parameters, by the diagonal of the Hessian (Bekas et al. 2007, "An
    estimator for the diagonal of a matrix") from differences of gradients. Where that leads to much
    less density than it would of a normal one, because the posterior is none, the move is halved.
    Starts should be overdispersed: Gelman & Rubin 1992, "Inference from iterative simulation".

    Args:
        density: of the posterior.
        params: the MAP, without padding.
        rng_keys: [C], of the starts.

    Returns:
        Parameters [C, ...].
    """
    at_map, unravel = ravel_pytree(params)
    value_and_grad = of_density(density, params)
    centre = np.asarray(at_map, np.float64)
    deviations = conditional_deviations(value_and_grad, centre)
    moves = [SPREAD * deviations * normal(key, centre.size) for key in rng_keys]
    starts = [unravel(jnp.asarray(away(value_and_grad, centre, move))) for move in moves]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)


def normal(rng_key: jax.Array, size: int) -> np.ndarray:
    """Standard normal numbers on the host."""
    return np.asarray(jax.random.normal(rng_key, (size,)), np.float64)


def away(value_and_grad: ValueAndGrad, centre: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Goes away from where the density is high, less far where it falls too much.

    Args:
        value_and_grad: of the log density.
        centre: [P].
        move: [P], `SPREAD` times what a draw of the posterior is from its centre, if it is normal.

    Returns:
        [P] float32.
    """
    # Twice what a normal density would lose.
    lowest = value_and_grad(centre)[0] - SPREAD**2 * centre.size
    for _ in range(_MOST_HALVINGS):
        if value_and_grad(centre + move)[0] >= lowest:
            break
        move = move / 2
    return np.asarray(centre + move, np.float32)


def conditional_deviations(
    value_and_grad: ValueAndGrad, centre: np.ndarray, lengths: np.ndarray | None = None
) -> np.ndarray:
    """Standard deviations of single parameters given the others, from curvature at a maximum.

    Args:
        value_and_grad: of the log density.
        centre: [P], the maximum.
        lengths: [P], of the differences of gradients; None: a hundredth of the parameters. They
            say which parameters are on another scale than others.
    """
    rng = np.random.default_rng(0)
    total = np.zeros_like(centre)
    has_scales = lengths is not None
    if lengths is None:
        typical = np.sqrt(np.mean(centre**2)) + _DIFFERENCE
        lengths = _DIFFERENCE * np.maximum(np.abs(centre), typical)
    if centre.size <= _NUM_PROBES:  # Orthogonal ones are exact.
        signs = scipy.linalg.hadamard(_NUM_PROBES)[:, : centre.size]
    else:
        signs = rng.choice([-1.0, 1.0], (_NUM_PROBES, centre.size))
    for sign in signs:
        step = lengths * sign
        above, below = value_and_grad(centre + step)[1], value_and_grad(centre - step)[1]
        total -= (above - below) / (2 * step)
    curvature = total / _NUM_PROBES
    positive = curvature[curvature > 0]
    if not len(positive):
        return np.full_like(centre, np.sqrt(np.mean(centre**2)))
    # Noise makes some too small, or negative: those count as the flattest tenth.
    if not has_scales:
        return 1 / np.sqrt(np.maximum(curvature, np.quantile(positive, 0.1)))
    share = 0 if centre.size <= _NUM_PROBES else 0.1
    relative = curvature * lengths**2
    return lengths / np.sqrt(np.maximum(relative, np.quantile(relative[curvature > 0], share)))
