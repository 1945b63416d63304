"""Priors on parameters, by group: what `config.prior` says, by `ensemble.config.prior_text`.

A family has centred densities of the values of one parameter, of scale 1. `setting` is the number
of a family besides its scale, as in `student_t(1, df=4)`; it is NaN for a family without one.
`log_density` is up to a constant, nats, of the values of one parameter.
"""

import fnmatch
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from ensemble.config.prior_text import Prior, read_prior
from ensemble.errors import InputError
from ensemble.network import path_name


class Normal:
    """Independent normal values; the scale is the standard deviation."""

    def log_density(self, values: Array, setting: float) -> Array:
        return -0.5 * jnp.sum(jnp.square(values))

    def sample(self, rng_key: Array, shape: Sequence[int], setting: float) -> Array:
        return random.normal(rng_key, shape)

    def standard_deviation(self, setting: float) -> float:
        return 1.0


class Laplace:
    """Independent values with a Laplace density; the scale is the mean absolute value."""

    def log_density(self, values: Array, setting: float) -> Array:
        return -jnp.sum(jnp.abs(values))

    def sample(self, rng_key: Array, shape: Sequence[int], setting: float) -> Array:
        return random.laplace(rng_key, shape)

    def standard_deviation(self, setting: float) -> float:
        return math.sqrt(2)


class StudentT:
    """Independent values with heavy tails: Student's t of `df` degrees of freedom."""

    def log_density(self, values: Array, setting: float) -> Array:
        return -0.5 * (setting + 1) * jnp.sum(jnp.log1p(jnp.square(values) / setting))

    def sample(self, rng_key: Array, shape: Sequence[int], setting: float) -> Array:
        return random.t(rng_key, setting, shape)

    def standard_deviation(self, setting: float) -> float:
        return math.sqrt(setting / (setting - 2))


def parse_prior(spec: str) -> tuple[Prior, ...]:
    """Reads a prior, as `ensemble.config.prior_text` describes it; 'none' gives no priors.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return read_prior(spec)
    except ValueError as error:
        raise InputError(f"config.prior={spec!r} {error}") from None


def log_prior(priors: Sequence[Prior], params: Any) -> Array:
    """Log density of all parameters up to a constant, nats; zero without priors.

    Raises:
        InputError: a parameter belongs to no group.
    """
    total = jnp.zeros(())
    for path, values in jax.tree_util.tree_leaves_with_path(params) if priors else ():
        total += prior_of(priors, path).log_density(values)
    return total


def prior_of(priors: Sequence[Prior], path: Any) -> Prior:
    """The prior of the parameter at a path, as `jax.tree_util` gives paths.

    Raises:
        InputError: it belongs to no group.
    """
    name = path_name(path)
    for prior in priors:
        if fnmatch.fnmatchcase(name, prior.pattern):
            return prior
    raise InputError(f"config.prior says nothing of {name}; end it with a term '*=normal(1)'")


def sample_prior(rng_key: Array, priors: Sequence[Prior], params_template: Any) -> Any:
    """Draws parameters from the prior.

    Args:
        rng_key: Key of the chain.
        priors: Priors of `parse_prior`.
        params_template: Tree of arrays or of their shapes; the draw's structure.

    Raises:
        InputError: a parameter belongs to no group.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params_template)
    draws = [
        prior_of(priors, path).sample(random.fold_in(rng_key, k), leaf.shape)
        for k, (path, leaf) in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, draws)
