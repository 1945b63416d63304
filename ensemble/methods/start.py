"""Chains start at draws of the prior, around a maximum, or at what another run has found."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.config.builtin import MAP, PRIOR, STARTS, UNIFORM
from ensemble.data.source import in_memory
from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.methods.coordinates import from_params, kronecker, to_params
from ensemble.methods.given_weights import check_number, named, read
from ensemble.runtime.algorithm import Start
from ensemble.sharding import processes, signals, transfer
from ensemble.storage import weights
from ensemble.storage.workdir import Workdir
from ensemble.task import LogDensity, Modelled

_MAP_ITERATIONS = 1000


def starting_points(config, task, density: LogDensity) -> Start:
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
    keys = pytrees.keys_of(jax.random.key(config.seed), jnp.arange(config.num_chains))
    keys = jax.vmap(jax.random.split)(keys)[:, 0]
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
        params = jax.vmap(task.sample_prior)(keys)
    if whitens:
        maximum = find_map(task, density)
        train = in_memory(task.dataset, "train")
        coordinates = kronecker(task, train, maximum, config.posterior_temperature)
    if origin == MAP:
        found = jax.vmap(lambda key: pytrees.standard_normal(key, shapes))(keys)
    else:
        found = jax.vmap(lambda one: from_params(coordinates, one))(params)
    coordinates, found = processes.tree_from_main((coordinates, found))
    return Start(coordinates, density.layout.pad(found, axis=1))


def given_starts(config, task):
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
    fits = weights.fitting(found, own, own, what, str(config.model))
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
    params = task.init_variables(jax.random.key(0))["params"]
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
