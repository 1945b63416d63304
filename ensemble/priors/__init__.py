"""Priors on parameters, by group: what `config.prior` says, by `ensemble.config.prior_text`.

A family of densities has the functions of those in `ensemble.priors.families`.
"""

import fnmatch
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.config.prior_text import Prior, read_prior
from ensemble.errors import InputError
from ensemble.network import path_name

__all__ = ["Prior", "log_prior", "parse_prior", "prior_of", "sample_prior"]


def parse_prior(spec: str) -> tuple[Prior, ...]:
    """Reads a prior, as `ensemble.config.prior_text` describes it; 'none' gives no priors.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return read_prior(spec)
    except ValueError as error:
        raise InputError(f"config.prior={spec!r} {error}") from None


def log_prior(priors: tuple[Prior, ...], params: Any) -> jax.Array:
    """Log density of all parameters up to a constant, nats; zero without priors.

    Raises:
        InputError: a parameter belongs to no group.
    """
    total = jnp.zeros(())
    if not priors:
        return total
    for path, values in jax.tree_util.tree_leaves_with_path(params):
        total += prior_of(priors, path).log_density(values)
    return total


def prior_of(priors: tuple[Prior, ...], path: tuple[Any, ...]) -> Prior:
    """The prior of the parameter at a path, as `jax.tree_util` gives paths.

    Raises:
        InputError: it belongs to no group.
    """
    name = path_name(path)
    prior = next((one for one in priors if fnmatch.fnmatchcase(name, one.pattern)), None)
    if prior is None:
        raise InputError(f"config.prior says nothing of {name}; end it with a term '*=normal(1)'")
    return prior


def sample_prior(rng_key: jax.Array, priors: tuple[Prior, ...], params_template: Any) -> Any:
    """Draws parameters from the prior.

    Args:
        rng_key: Key of the chain.
        priors: Priors of `parse_prior`.
        params_template: Tree of arrays or of their shapes; the draw's structure.

    Raises:
        InputError: there are no priors, or a parameter belongs to no group.
    """
    if not priors:
        raise InputError(
            "config.prior='none' has nothing to draw a start from; set config.prior='normal(1)', "
            "or another start"
        )
    leaves, structure = jax.tree_util.tree_flatten_with_path(params_template)
    draws = [
        prior_of(priors, path).sample(jax.random.fold_in(rng_key, k), leaf.shape)
        for k, (path, leaf) in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, draws)
