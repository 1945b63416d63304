"""Priors on parameters, by group: what `config.prior` says, by `ensemble.config.prior_text`.


A family of densities has the members of `ensemble.priors.families.PriorFamily`.
"""

from __future__ import annotations

import fnmatch
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ensemble.config.pieces import PRIORS
from ensemble.config.prior_text import read_prior
from ensemble.errors import InputError
from ensemble.network import path_name

if TYPE_CHECKING:
    from ensemble.priors.families import PriorFamily


class Prior(NamedTuple):
    """A centred prior on the parameters of a group.

    Attributes:
        pattern: Pattern of the parameters' paths.
        family: Name in `ensemble.config.pieces.PRIORS`, or path.
        scale: Scale, as the family has it.
        is_over_fan_in: Whether the scale is divided by the root of the fan-in.
        setting: The family's further number; NaN if it has none.
    """

    pattern: str
    family: str
    scale: float
    is_over_fan_in: bool
    setting: float = math.nan

    def log_density(self, values: jax.Array) -> jax.Array:
        """Log density of the values of one parameter up to a constant, nats."""
        return named(self.family).log_density(values / self.scale_of(values.shape), self.setting)

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Draws the values of one parameter, float32 of that shape."""
        return self.scale_of(shape) * named(self.family).sample(rng_key, shape, self.setting)

    def standard_deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation of each value of a parameter of that shape."""
        return self.scale_of(shape) * named(self.family).standard_deviation(self.setting)

    def scale_of(self, shape: tuple[int, ...]) -> float:
        """The scale for a parameter of that shape."""
        return self.scale / math.sqrt(math.prod(shape[:-1])) if self.is_over_fan_in else self.scale


def named(family: str) -> PriorFamily:
    """Returns a family by its name or path."""
    found: PriorFamily = PRIORS.load(family)()
    return found


def parse_prior(spec: str) -> tuple[Prior, ...]:
    """Reads a prior, as `ensemble.config.prior_text` describes it; 'none' gives no priors.

    Raises:
        InputError: it cannot be read.
    """
    try:
        terms = read_prior(spec)
    except ValueError as error:
        raise InputError(f"config.prior={spec!r} {error}") from None
    return tuple(
        Prior(*term[:4], math.nan if term.setting is None else term.setting[1]) for term in terms
    )


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
