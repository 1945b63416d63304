"""Priors on parameters, by group: what `config.prior` says.

    config.prior = "normal(1)"                              # on every parameter
    config.prior = "*bias=normal(1), *kernel=normal(1.4/sqrt(fan_in))"
    config.prior = "Dense_0/*=laplace(0.1), *=normal(1)"

A group is a pattern of the shell's kind over the parameter's path, such as `Dense_0/kernel`; the
first that fits counts. A scale may be divided by the root of the fan-in, the product of all axes
but the last (1 for vectors), as in Neal 1996, so that wider layers say the same.
"""

from __future__ import annotations

import fnmatch
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ensemble.errors import UserError

NONE = "none"
_SMALLEST, _LARGEST = 1e-15, 1e15  # The squares of what is beyond would leave float32.
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TERM = re.compile(rf"(?:([\w*?!\[\]/.-]+)=)?(normal|laplace)\(({_NUMBER})(/sqrt\(fan_in\))?\)")


class Prior(NamedTuple):
    """An independent, centred prior on the parameters of a group.

    Attributes:
        pattern: of the parameters' paths.
        family: 'normal' or 'laplace'.
        scale: standard deviation of a normal, mean absolute value of a Laplace prior.
        is_over_fan_in: whether the scale is divided by the root of the fan-in.
    """

    pattern: str
    family: str
    scale: float
    is_over_fan_in: bool

    def log_density(self, values: jax.Array) -> jax.Array:
        """Log density of the values of one parameter up to a constant, nats."""
        scale = self.scale_of(values.shape)
        if self.family == "normal":
            return -0.5 * jnp.sum(jnp.square(values / scale))
        return -jnp.sum(jnp.abs(values)) / scale

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Draws the values of one parameter, float32 of that shape."""
        draw = jax.random.normal if self.family == "normal" else jax.random.laplace
        return self.scale_of(shape) * draw(rng_key, shape)

    def standard_deviation(self, shape: tuple[int, ...]) -> float:
        """Of each value of a parameter of that shape."""
        return self.scale_of(shape) * (1 if self.family == "normal" else math.sqrt(2))

    def scale_of(self, shape: tuple[int, ...]) -> float:
        """The scale for a parameter of that shape."""
        return self.scale / math.sqrt(math.prod(shape[:-1])) if self.is_over_fan_in else self.scale


def parse_prior(spec: str) -> tuple[Prior, ...]:
    """Reads a specification, as the module describes it; 'none' gives no priors.

    Raises:
        UserError: it cannot be read, or a scale is not positive.
    """
    if spec == NONE:
        return ()
    priors = []
    for term in spec.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None or not _SMALLEST < float(match[3]) < _LARGEST:
            raise UserError(
                f"config.prior={spec!r}: {term.strip()!r} is no prior; write '{NONE}', or terms "
                "such as normal(1), *bias=laplace(0.5) or *kernel=normal(1.4/sqrt(fan_in)) with "
                "positive scales, separated by commas"
            )
        pattern, family, scale, over_fan_in = match.groups()
        priors.append(Prior(pattern or "*", family, float(scale), over_fan_in is not None))
    return tuple(priors)


def log_prior(priors: tuple[Prior, ...], params: Any) -> jax.Array:
    """Log density of all parameters up to a constant, nats; zero without priors.

    Raises:
        UserError: a parameter belongs to no group.
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
        UserError: it belongs to no group.
    """
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    prior = next((one for one in priors if fnmatch.fnmatchcase(name, one.pattern)), None)
    if prior is None:
        raise UserError(f"config.prior says nothing of {name}; end it with a term '*=normal(1)'")
    return prior


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
