"""Where the chains of a model start, on the whole real line."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from blackjax.optimizers.lbfgs import bfgs_sample
from blackjax.vi import pathfinder
from flax.traverse_util import flatten_dict
from jax.flatten_util import ravel_pytree

from ensemble.draws.store import Draws
from ensemble.errors import UserError
from ensemble.methods.mcmc.log_density import LogDensity
from ensemble.methods.mcmc.maximum import (
    SPREAD,
    ValueAndGrad,
    away,
    conditional_deviations,
    maximise,
    normal,
    of_density,
)
from ensemble.methods.mcmc.sampler_keys import MAP, PATHFINDER, PRIOR, UNIFORM
from ensemble.notes import note
from ensemble.sharding import transfer
from ensemble.storage.workdir import Workdir
from ensemble.task import Modelled

_MAP_ITERATIONS, _MAP_SEARCHES = 1000, 5
_MAX_SLOPE = 0.1  # Nats a standard deviation, at a maximum.
_PATH_LENGTH = 60  # Iterations of L-BFGS.
_PATH_DRAWS = 10  # For the evidence lower bound of each of them.
_AWAY = 2**32 - 1  # Number that no attempt at a start has: a stream of a chain's key.
_LINE_SEARCH = 30  # Steps; near the end float32 would go on for long.


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
        UserError: no start is found, or the workdir has draws of another model.
    """
    if config.init_from in (PRIOR, UNIFORM):
        return model.starts(rng_keys, from_prior=config.init_from == PRIOR)
    if config.init_from not in (MAP, PATHFINDER):
        return _last_draws(config, model, density)
    evenly = model.starts(rng_keys, from_prior=False)
    first, unravel = ravel_pytree(_chain(evenly, 0))
    value_and_grad = of_density(density, _chain(evenly, 0))
    keys = [jax.random.fold_in(key, _AWAY) for key in rng_keys]
    if config.init_from == MAP:
        flat = [
            _around_maximum(
                value_and_grad, ravel_pytree(_chain(evenly, k))[0], key, str(config.model)
            )
            for k, key in enumerate(keys)
        ]
    else:
        flat = _along_paths(density, value_and_grad, evenly, keys)
    return jax.vmap(unravel)(jnp.asarray(np.stack(flat), first.dtype))


def _chain(positions: Any, k: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[k]), positions)


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

        result = maximise(scaled, np.zeros_like(centre), _MAP_ITERATIONS)
        centre = origin + units * result.x
        for share in (0.01, 0.3):  # Of the scales before, which are not yet those here.
            deviations = conditional_deviations(value_and_grad, centre, share * deviations)
        value, grad = value_and_grad(centre)
        # A spike without a top, as of a hierarchy that is centred, goes on rising.
        if value < highest + 1 and np.max(np.abs(grad) * deviations) < _MAX_SLOPE:
            return away(value_and_grad, centre, SPREAD * deviations * normal(rng_key, centre.size))
        highest = value
    raise UserError(
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
            flat.append(np.asarray(ravel_pytree(_chain(starts, k))[0]))
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
        UserError: they are none, too few, of other parameters, or impossible here.
    """
    where = f"config.init_from={config.init_from!r}"
    known = f"use a workdir of a model, '{UNIFORM}', '{PRIOR}', '{MAP}' or '{PATHFINDER}'"
    work = Workdir(config.init_from)
    if work.read_config() is None:
        raise UserError(f"{where} is not a workdir; {known}")
    nested, numbers = Draws(work.draws, work.identity()).positions()
    positions = flatten_dict(nested, sep="/")
    if not len(numbers):
        raise UserError(f"{where} has no draw that was kept; {known}")
    theirs = {name: np.shape(leaf)[2:] for name, leaf in positions.items()}
    ours = {name: leaf.shape for name, leaf in model.params_shapes().items()}
    if theirs != ours:
        raise UserError(
            f"{where} has draws of the parameters {theirs}, this run samples {ours}; both must "
            "have the same"
        )
    num_chains = len(next(iter(positions.values())))
    if num_chains < config.num_chains:
        raise UserError(
            f"{where} has {num_chains} chains for {config.num_chains}; lower config.num_chains"
        )
    chosen = {
        name: jnp.asarray(leaf[: config.num_chains, -1], jnp.float32)
        for name, leaf in positions.items()
    }
    value_and_grad = of_density(density, _chain(chosen, 0))
    for k in range(config.num_chains):
        value, grad = value_and_grad(np.asarray(ravel_pytree(_chain(chosen, k))[0]))
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            raise UserError(
                f"{where}: the log density or its gradient is not finite at the last draw of chain "
                f"{k} there, in this run; {known}"
            )
    model.check_starts(transfer.fetch(chosen))
    return chosen
