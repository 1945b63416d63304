"""Chains start at draws of the prior, around a maximum, or at what another run has found.

The chains of a network have its members to start from, those of a model on the whole real line also
paths of Pathfinder. Maxima are searched for on the host.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import scipy
from blackjax.optimizers.lbfgs import bfgs_sample
from blackjax.vi import pathfinder
from flax.traverse_util import flatten_dict
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.config.builtin import MAP, PATHFINDER, PRIOR, UNIFORM, is_file
from ensemble.data.source import in_memory
from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.methods.coordinates import (
    Coordinates,
    as_regression,
    check_kronecker,
    kronecker,
)
from ensemble.methods.given_weights import check_number, read, run_of
from ensemble.network import path_name
from ensemble.notes import note
from ensemble.sharding import processes, signals, transfer
from ensemble.storage import weights
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned, LogDensity, Modelled

logger = logging.getLogger("ensemble")

ValueAndGrad = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""From a position [P] to nats and their gradient [P], in float64 on the host."""

SPREAD = 3.0
"""Standard deviations by which starts are spread around a maximum."""
_MOST_HALVINGS = 20
_NUM_PROBES = 32  # A power of 2.
_DIFFERENCE = 1e-2  # Of the size of a parameter.
_LOG_EVERY = 50  # Iterations.

_MAP_ITERATIONS, _MAP_SEARCHES = 1000, 5
_MAX_SLOPE = 0.1  # Nats a standard deviation, at a maximum.
_PATH_LENGTH = 60  # Iterations of L-BFGS.
_PATH_DRAWS = 10  # For the evidence lower bound of each of them.
_AWAY = 2**32 - 1  # Number that no attempt at a start has: a stream of a chain's key.
_LINE_SEARCH = 30  # Steps; near the end float32 would go on for long.


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
        InputError: `config.init_from` does not suit this run, or the mass the network.
    """
    if isinstance(task, Modelled):
        return Coordinates(), starts_of_model(config, task, density, rng_keys)
    if config.init_from in (UNIFORM, PATHFINDER):
        raise InputError(
            f"config.init_from='{config.init_from}' is for log densities; networks have "
            f"'{PRIOR}', '{MAP}', a workdir or a file of weights"
        )
    whitens = config.sampler.mass_matrix == "kronecker"
    params = maximum = None
    # What they refuse is said before the long search.
    if whitens:
        check_kronecker(task)
    if config.init_from == PRIOR:
        params = jax.vmap(task.sample_prior)(rng_keys)
    elif config.init_from != MAP:
        params = members_of(config, task)
    if whitens or params is None:
        maximum = find_map(task, density)
    coordinates = Coordinates()
    if whitens:
        train = in_memory(task.dataset, "train")
        coordinates = kronecker(task, train, maximum, config.posterior_temperature)
    if params is None and whitens:
        shapes = task.params_shapes()
        return coordinates, jax.vmap(lambda key: pytrees.standard_normal(key, shapes))(rng_keys)
    if params is None:
        params = spread(density, maximum, rng_keys)
    return coordinates, jax.vmap(coordinates.from_params)(params)


def find_map(task: Learned, density: LogDensity) -> Any:
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends as `maximise` does. Logistic regression starts from zero, and is searched in coordinates
    that whiten there. Other networks start as a member does, and end at one of several maxima.

    Args:
        task: network and prior.
        density: of `make_log_density`.

    Returns:
        The parameters at the maximum.

    Raises:
        InputError: the log density is not finite at the start.
    """
    coordinates, regression = Coordinates(), as_regression(task)
    if regression:
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), task.params_shapes())
        if regression.priors:
            # There the Kronecker form is exact: nothing is left to stretch.
            train = in_memory(task.dataset, "train")
            coordinates = processes.tree_from_main(kronecker(task, train, params, num_stretched=0))
    else:
        params = task.init_variables(jax.random.key(0))["params"]
    flat, unravel = ravel_pytree(coordinates.from_params(params))
    value_and_grad = of_density(density, params, coordinates)
    result = maximise(value_and_grad, np.asarray(flat, np.float64))
    if result.nit >= _MAP_ITERATIONS:
        logger.warning(
            "The search for the MAP ended at its limit of %d iterations, with a gradient of up to "
            "%.3g nats: where it ended is no maximum.",
            _MAP_ITERATIONS,
            np.max(np.abs(result.jac)),
        )
    params = coordinates.to_params(unravel(jnp.asarray(result.x, jnp.float32)))
    return processes.tree_from_main(params)


def members_of(config: ml_collections.FrozenConfigDict, task: Learned) -> Any:
    """Reads the parameters [C, ...] of an ensemble's first live members, or of chains' last draws.

    A file of weights is one member.

    Raises:
        InputError: they are of another network or have learned other data, or are too few.
    """
    where = f"config.init_from={config.init_from!r}"
    if is_file(config.init_from):
        return _of_file(config, task.params_shapes(), where)
    named = f"'{PRIOR}'" if "sgmcmc" in config else f"'{PRIOR}' or '{MAP}'"
    restored = run_of(config, task, f"use {named}")
    check_number(config, len(restored.members), "num_chains")
    taken = restored.members[: config.num_chains]
    if taken != list(range(config.num_chains)):
        logger.warning("%s: chains start from the members %s, which are live.", where, taken)
    found = restored.fitted.last_variables()["params"]
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[: config.num_chains]), found)


def _of_file(config: ml_collections.FrozenConfigDict, shapes: Any, where: str) -> Any:
    """Parameters [1, ...] of a file of weights, which has all of them."""
    if config.num_chains > 1:
        raise InputError(
            f"{where} has one network for {config.num_chains} chains; set config.num_chains=1, or "
            "give the workdir of as many members"
        )
    of_one = read(config.init_from, where)
    leaves = {path_name(path): one for path, one in jax.tree.leaves_with_path(shapes)}
    fits = weights.fitting(of_one, leaves, leaves, where, config.model)
    return jax.tree.map_with_path(lambda path, _: jnp.asarray(fits[path_name(path)]), shapes)


def starts_of_model(
    config: ml_collections.FrozenConfigDict,
    model: Modelled,
    density: LogDensity,
    rng_keys: jax.Array,
) -> Any:
    """Finds where the chains of a model start.

    A chain that starts by 'map' or 'pathfinder' searches from an even draw of its own, so that
    several chains may find several modes. It starts away from what it has found, see `away`.

    Args:
        config: of the run.
        model: that is sampled.
        density: of the model.
        rng_keys: [C], of the starts.

    Returns:
        Parameters [C, ...], without padding.

    Raises:
        InputError: no start is found, or the workdir has draws of another model.
    """
    if config.init_from in (PRIOR, UNIFORM):
        return model.starts(rng_keys, from_prior=config.init_from == PRIOR)
    if config.init_from not in (MAP, PATHFINDER):
        return _last_draws(config, model, density)
    evenly = model.starts(rng_keys, from_prior=False)
    first, unravel = ravel_pytree(pytrees.at(evenly, 0))
    value_and_grad = of_density(density, pytrees.at(evenly, 0))
    keys = [jax.random.fold_in(key, _AWAY) for key in rng_keys]
    if config.init_from == MAP:
        flat = [
            _around_maximum(
                value_and_grad, ravel_pytree(pytrees.at(evenly, k))[0], key, str(config.model)
            )
            for k, key in enumerate(keys)
        ]
    else:
        flat = _along_paths(density, value_and_grad, evenly, keys)
    return jax.vmap(unravel)(jnp.asarray(np.stack(flat), first.dtype))


def _around_maximum(
    value_and_grad: ValueAndGrad, start: jax.Array, rng_key: jax.Array, model: str
) -> np.ndarray:
    """A start [P] about the maximum that a search from another one [P] finds.

    Where float32 ends a search early, another one follows, in units of what is known of the scales.
    """
    # Parameters on the real line are about 1.
    centre, deviations, highest = np.asarray(start, np.float64), np.ones(start.size), -np.inf
    for _ in range(_MAP_SEARCHES):
        origin, units = centre, deviations

        def scaled(position: np.ndarray, origin: Any = origin, units: Any = units) -> Any:
            value, grad = value_and_grad(origin + units * position)
            return value, units * grad

        result = maximise(scaled, np.zeros_like(centre))
        centre = origin + units * result.x
        for share in (0.01, 0.3):  # Of the scales before, which are not yet those here.
            deviations = conditional_deviations(value_and_grad, centre, share * deviations)
        value, grad = value_and_grad(centre)
        # A spike without a top, as of a hierarchy that is centred, goes on rising.
        if value < highest + 1 and np.max(np.abs(grad) * deviations) < _MAX_SLOPE:
            return away(value_and_grad, centre, SPREAD * deviations * normal(rng_key, centre.size))
        highest = value
    raise InputError(
        f"config.init_from='{MAP}': the log density of config.model={model!r} has no maximum that "
        f"{_MAP_SEARCHES} searches find: the last one ended at {highest:.5g} nats, and it still "
        f"rises there; use '{PATHFINDER}' or '{UNIFORM}'"
    )


def _along_paths(
    density: LogDensity, value_and_grad: ValueAndGrad, starts: Any, rng_keys: Sequence[jax.Array]
) -> list[np.ndarray]:
    """Draws of the normal approximations of Pathfinder, one path a chain.

    Zhang et al. 2022, "Pathfinder: parallel quasi-Newton variational inference".
    """

    def find(one: tuple[jax.Array, Any], data: Any) -> Any:
        rng_key, start = one
        logdensity_fn = density.bind(data)
        flat, unravel = ravel_pytree(start)

        def of_flat(flat: jax.Array) -> jax.Array:
            return logdensity_fn(density.layout.pad(unravel(flat)))

        key_path, key_draw = jax.random.split(rng_key)
        found, _ = pathfinder.approximate(
            key_path, of_flat, flat, _PATH_DRAWS, maxiter=_PATH_LENGTH, maxls=_LINE_SEARCH
        )
        # BlackJAX holds the gradients of the negative log density: a Newton step is against them.
        slope = -found.grad_position
        factors = found.alpha, found.beta, found.gamma
        drawn, _ = bfgs_sample(key_draw, (), found.position, slope, *factors)
        step = found.alpha * slope + found.beta @ (found.gamma @ (found.beta.T @ slope))
        return found.elbo, found.position + step, drawn - found.position - step

    @jax.jit
    def find_all(keys: jax.Array, starts: Any, data: Any) -> Any:
        return jax.lax.map(lambda one: find(one, data), (keys, starts))

    found = transfer.fetch(find_all(jnp.stack(rng_keys), starts, density.data))
    flat, lost = [], []
    for k, (elbo, centre, move) in enumerate(zip(*found, strict=True)):
        if np.isfinite(elbo) and np.isfinite(value_and_grad(centre)[0]):
            centre, move = np.asarray((centre, move), np.float64)
            flat.append(away(value_and_grad, centre, SPREAD * move))
        else:
            lost.append(k)
            flat.append(np.asarray(ravel_pytree(pytrees.at(starts, k))[0]))
    if lost:
        note(
            f"Pathfinder found no approximation from the starts of chains "
            f"{', '.join(map(str, lost))}, which begin at these starts, drawn evenly."
        )
    return flat


def _last_draws(
    config: ml_collections.FrozenConfigDict, model: Modelled, density: LogDensity
) -> Any:
    """The last draws that the chains of another run of the model have kept.

    Raises:
        InputError: they are none, too few, of other parameters, or impossible here.
    """
    where = f"config.init_from={config.init_from!r}"
    known = f"use a workdir of a model, '{UNIFORM}', '{PRIOR}', '{MAP}' or '{PATHFINDER}'"
    work = Workdir(config.init_from)
    if work.read_config() is None:
        raise InputError(f"{where} is not a workdir; {known}")
    nested, numbers = Draws(work.draws).positions()
    positions = flatten_dict(nested, sep="/")
    if not len(numbers):
        raise InputError(f"{where} has no draw that was kept; {known}")
    theirs = {name: np.shape(leaf)[2:] for name, leaf in positions.items()}
    ours = {name: leaf.shape for name, leaf in model.params_shapes().items()}
    if theirs != ours:
        raise InputError(
            f"{where} has draws of the parameters {theirs}, this run samples {ours}; both must "
            "have the same"
        )
    num_chains = len(next(iter(positions.values())))
    if num_chains < config.num_chains:
        raise InputError(
            f"{where} has {num_chains} chains for {config.num_chains}; lower config.num_chains"
        )
    chosen = {
        name: jnp.asarray(leaf[: config.num_chains, -1], jnp.float32)
        for name, leaf in positions.items()
    }
    value_and_grad = of_density(density, pytrees.at(chosen, 0))
    for k in range(config.num_chains):
        value, grad = value_and_grad(np.asarray(ravel_pytree(pytrees.at(chosen, k))[0]))
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            raise InputError(
                f"{where}: the log density or its gradient is not finite at the last draw of chain "
                f"{k} there, in this run; {known}"
            )
    model.check_starts(transfer.fetch(chosen))
    return chosen


def of_density(
    density: LogDensity, params: Any, coordinates: Coordinates | None = None
) -> ValueAndGrad:
    """The log density, on the host, of positions in one piece, as `ravel_pytree` joins them.

    Args:
        density: of parameters.
        params: tree like theirs, without padding.
        coordinates: of the positions; None: these are parameters.
    """
    _, unravel = ravel_pytree(params)

    def of_flat(flat: jax.Array, coordinates: Coordinates, data: Any) -> jax.Array:
        moved = coordinates.to_params(unravel(flat))
        return density.bind(data)(density.layout.pad(moved))

    compiled = jax.jit(jax.value_and_grad(of_flat))

    def fetched(flat: np.ndarray) -> tuple[float, np.ndarray]:
        position = jnp.asarray(flat, jnp.float32)
        value, grad = transfer.fetch(compiled(position, coordinates or Coordinates(), density.data))
        return float(value), np.asarray(grad, np.float64)

    return fetched


def maximise(value_and_grad: ValueAndGrad, start: np.ndarray) -> "scipy.optimize.OptimizeResult":
    """Maximises a log density by L-BFGS-B; the same call gives the same answer.

    It ends where float32 can no longer tell a step's gain from rounding, or at the limit.

    Args:
        value_and_grad: of the log density.
        start: [P], where the search starts.

    Returns:
        SciPy's result, of the negative log density.

    Raises:
        InputError: the log density is not finite at the start.
    """
    num_calls = 0

    def objective(position: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_calls
        num_calls += 1
        value, grad = value_and_grad(position)
        return -value, -grad

    started = time.perf_counter()
    if not np.isfinite(objective(start)[0]):
        raise InputError("the log density is not finite where the search for the MAP starts")
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
        options={
            "maxiter": _MAP_ITERATIONS,
            "maxfun": 2 * _MAP_ITERATIONS,
            "ftol": 1e-9,
            "gtol": 0,
        },
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
