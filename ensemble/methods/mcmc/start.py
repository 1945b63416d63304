"""Where chains start: at draws of the prior, at the MAP, or at the members of an ensemble."""

import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import scipy.linalg
import scipy.optimize
from jax.flatten_util import ravel_pytree

from ensemble.config import model_settings
from ensemble.errors import UserError
from ensemble.methods.mcmc.coordinates import Coordinates, check_kronecker, identity, kronecker
from ensemble.methods.mcmc.log_density import LogDensity
from ensemble.methods.mcmc.sampler_keys import MAP, PRIOR, UNIFORM
from ensemble.predictor import restore
from ensemble.sharding import signals, transfer
from ensemble.source import in_memory
from ensemble.sources.features import check_same_backbone
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned, Modelled

logger = logging.getLogger("ensemble")

SPREAD = 3.0
"""Standard deviations by which starts at the MAP are spread around it."""
_MOST_HALVINGS = 20
_NUM_PROBES = 32  # A power of 2.
_DIFFERENCE = 1e-2  # Of the size of a parameter.
_LOG_EVERY = 50  # Iterations.


def starting_points(
    config: ml_collections.FrozenConfigDict,
    task: Learned | Modelled,
    density: LogDensity,
    rng_keys: jax.Array,
) -> tuple[Coordinates, Any]:
    """Finds the coordinates in which chains move, and where they start.

    Chains that start at the MAP are spread around it, so that R-hat can see whether they have
    forgotten their starts: with the Kronecker mass as that says, a Laplace approximation; else by
    several standard deviations of the parameters, see `spread`.

    Args:
        config: of the run.
        task: what is learned.
        density: of the posterior.
        rng_keys: [C], of the starts.

    Returns:
        The coordinates, and positions [C, ...] in them.

    Raises:
        UserError: `config.init_from` does not suit this run, or the mass the network.
    """
    if isinstance(task, Modelled):
        return identity(), _starts_of_model(config, task, rng_keys)
    if config.init_from == UNIFORM:
        raise UserError(
            f"config.init_from='{UNIFORM}' is for NumPyro models; networks have '{PRIOR}', '{MAP}' "
            "or a workdir"
        )
    shapes = task.params_shapes()
    regression = task.softmax_regression()
    whitens = config.hmc.mass == "kronecker"
    found = members = None
    # What they refuse is said before the long search.
    if whitens:
        check_kronecker(regression)
    if config.init_from not in (PRIOR, MAP):
        members = members_of(config, task, shapes)
    if whitens or config.init_from == MAP:
        found = find_map(task, density, shapes)
    coordinates = (
        kronecker(regression, in_memory(task.dataset, "train"), found, config.temperature)
        if whitens
        else identity()
    )
    if config.init_from == PRIOR:
        params = jax.vmap(task.sample_prior)(rng_keys)
    elif members is not None:
        params = members
    elif whitens:
        return coordinates, jax.vmap(lambda key: standard_normal(key, shapes))(rng_keys)
    else:
        params = spread(density, found, rng_keys)
    return coordinates, jax.vmap(coordinates.from_params)(params)


def _starts_of_model(
    config: ml_collections.FrozenConfigDict,
    model: Modelled,
    rng_keys: jax.Array,
) -> Any:
    """Where the chains of a model start, on the whole real line."""
    if config.init_from not in (PRIOR, UNIFORM):
        raise UserError(
            f"config.init_from={config.init_from!r} must be '{UNIFORM}' or '{PRIOR}' for "
            f"config.model={config.model!r}; '{MAP}' and workdirs are for networks"
        )
    return model.starts(rng_keys, from_prior=config.init_from == PRIOR)


def find_map(
    task: Learned, density: LogDensity, params_template: Any, max_iterations: int = 1000
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
    regression = task.softmax_regression()
    if regression:
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params_template)
        if regression.priors:
            # There the Kronecker form is exact: nothing is left to stretch.
            train = in_memory(task.dataset, "train")
            coordinates = kronecker(regression, train, params, num_stretched=0)
    else:
        params = density.layout.pad(task.init_variables(jax.random.key(0))["params"])
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
        value, grads = transfer.fetch((value, grads))
        return -float(value), -grads.astype(np.float64)

    started = time.perf_counter()
    if not np.isfinite(objective(np.asarray(flat, np.float64))[0]):
        raise UserError("the log density is not finite where the search for the MAP starts")
    iteration = 0

    def log_progress(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        nonlocal iteration
        signals.check()
        iteration += 1
        if iteration % _LOG_EVERY == 0:
            value = -intermediate_result.fun
            logger.info("MAP: iteration %d, log density %.2f nats", iteration, value)

    result = scipy.optimize.minimize(
        objective,
        np.asarray(flat, np.float64),
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
    if result.nit >= max_iterations:
        logger.warning(
            "The search for the MAP ended at its limit of %d iterations, with a gradient of up to "
            "%.3g nats: where it ended is no maximum.",
            max_iterations,
            np.max(np.abs(result.jac)),
        )
    params = coordinates.to_params(unravel(jnp.asarray(result.x, jnp.float32)))
    return density.layout.strip(params)


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

    @jax.jit
    def value_and_grad(flat: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
        def of_flat(flat: jax.Array) -> jax.Array:
            return density.bind(data)(density.layout.pad(unravel(flat)))

        return jax.value_and_grad(of_flat)(flat)

    def fetched(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = transfer.fetch(value_and_grad(jnp.asarray(flat, jnp.float32), density.data))
        return float(value), np.asarray(grad, np.float64)

    centre = np.asarray(at_map, np.float64)
    highest, deviations = fetched(centre)[0], _conditional_deviations(fetched, centre)
    lowest = highest - SPREAD**2 * centre.size  # Twice what a normal density would lose.
    starts = []
    for key in rng_keys:
        move = SPREAD * deviations * np.asarray(jax.random.normal(key, centre.shape), np.float64)
        for _ in range(_MOST_HALVINGS):
            if fetched(centre + move)[0] >= lowest:
                break
            move /= 2
        starts.append(unravel(jnp.asarray(centre + move, at_map.dtype)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)


def _conditional_deviations(
    value_and_grad: Callable[[np.ndarray], tuple[float, np.ndarray]], centre: np.ndarray
) -> np.ndarray:
    """Standard deviations of single parameters given the others, from curvature at a maximum."""
    rng = np.random.default_rng(0)
    total = np.zeros_like(centre)
    length = _DIFFERENCE * np.maximum(np.abs(centre), np.sqrt(np.mean(centre**2)) + _DIFFERENCE)
    if centre.size <= _NUM_PROBES:  # Orthogonal ones are exact.
        signs = scipy.linalg.hadamard(_NUM_PROBES)[:, : centre.size]
    else:
        signs = rng.choice([-1.0, 1.0], (_NUM_PROBES, centre.size))
    for sign in signs:
        step = length * sign
        above, below = value_and_grad(centre + step)[1], value_and_grad(centre - step)[1]
        total -= (above - below) / (2 * step)
    curvature = total / _NUM_PROBES
    positive = curvature[curvature > 0]
    if not len(positive):
        return np.full_like(centre, np.sqrt(np.mean(centre**2)))
    # Noise makes some too small, or negative: those count as the flattest tenth.
    return 1 / np.sqrt(np.maximum(curvature, np.quantile(positive, 0.1)))


def standard_normal(rng_key: jax.Array, shapes: Any) -> Any:
    """Draws a tree of independent standard normal variables."""
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(rng_key, len(leaves))
    drawn = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def members_of(config: ml_collections.FrozenConfigDict, task: Learned, shapes: Any) -> Any:
    """Reads the parameters [C, ...] of an ensemble's first live members, or of chains' last draws.

    Raises:
        UserError: the workdir has another network or other data, or too few members.
    """
    where = f"config.init_from={config.init_from!r}"
    try:
        restored = restore(Workdir(config.init_from))
    except UserError as error:
        raise UserError(f"{where}: {error}; or use '{PRIOR}' or '{MAP}'") from None
    if restored.config["model"] != config.model:
        raise UserError(
            f"{where} has the model {restored.config['model']!r}, this run {config.model!r}; "
            "both must have the same"
        )
    theirs, ours = model_settings(restored.config), model_settings(config)
    if theirs != ours:
        raise UserError(
            f"{where} has the model {config.model!r} with {theirs or 'its defaults'}, this run "
            f"with {ours or 'its defaults'}; both must have the same"
        )
    if restored.description["fingerprint"] != task.dataset.fingerprint:
        raise UserError(
            f"{where} has learned other data, {restored.description['name']}, than "
            f"{task.dataset.name} as it is split here; both must have the same"
        )
    check_same_backbone(restored.description, task.describe(), where)
    if len(restored.members) < config.num_chains:
        raise UserError(
            f"{where} has {len(restored.members)} live members for {config.num_chains} chains; "
            "lower config.num_chains"
        )
    num_draws, taken = restored.num_draws, restored.members[: config.num_chains]
    if taken != list(range(config.num_chains)):
        logger.warning("%s: chains start from the members %s, which are live.", where, taken)
    chosen = jax.tree.map(
        lambda leaf: jnp.asarray(leaf[num_draws - 1 :: num_draws][: config.num_chains]),
        restored.variables["params"],
    )
    found = jax.tree.map(lambda leaf: leaf.shape[1:], chosen)
    if found != jax.tree.map(lambda leaf: leaf.shape, shapes):
        raise UserError(f"{where} has parameters of other shapes than {config.model!r} has here")
    return chosen
