"""Priors on parameters, by group: what `config.prior` says.

    config.prior = "normal(1)"                              # on every parameter
    config.prior = "*bias=normal(1), *kernel=normal(1.4/sqrt(fan_in))"
    config.prior = "Dense_0/*=laplace(0.1), *=normal(1)"
    config.prior = "Conv_*/kernel=correlated_normal(1/sqrt(fan_in), length=2), *=student_t(1, df=4)"

A group is a pattern of the shell's kind over the parameter's path, such as `Dense_0/kernel`; the
first that fits counts. A scale may be divided by the root of the fan-in, the product of all axes
but the last (1 for vectors), as in Neal 1996, so that wider layers say the same.

A family of densities is a file here, with the members of `ensemble.priors.family.PriorFamily`, and
an `ensemble.entries.PriorEntry`.
"""

from __future__ import annotations

import fnmatch
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ensemble import registry
from ensemble.errors import UserError
from ensemble.network import path_name

if TYPE_CHECKING:
    from ensemble.priors.family import PriorFamily

NONE = "none"
_SMALLEST, _LARGEST = 1e-15, 1e15  # The squares of what is beyond would leave float32.
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TERM = re.compile(
    r"(?:(?P<pattern>[\w*?!\[\]/.-]+)=)?(?P<family>\w+)"
    rf"\((?P<scale>{_NUMBER})(?P<over_fan_in>/sqrt\(fan_in\))?"
    rf"(?:,\s*(?P<name>\w+)=(?P<value>{_NUMBER}))?\)"
)
_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")  # A comma, but none within parentheses.


class Prior(NamedTuple):
    """A centred prior on the parameters of a group.

    Attributes:
        pattern: of the parameters' paths.
        family: its name in `ensemble.registry.PRIORS`.
        scale: as the family has it.
        is_over_fan_in: whether the scale is divided by the root of the fan-in.
        setting: the family's further number; NaN where it has none.
    """

    pattern: str
    family: str
    scale: float
    is_over_fan_in: bool
    setting: float = math.nan

    def log_density(self, values: jax.Array) -> jax.Array:
        """Log density of the values of one parameter up to a constant, nats."""
        return named(self.family).log_density(values, self.scale_of(values.shape), self.setting)

    def sample(self, rng_key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Draws the values of one parameter, float32 of that shape."""
        return named(self.family).sample(rng_key, shape, self.scale_of(shape), self.setting)

    def standard_deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation of each value of a parameter of that shape."""
        return named(self.family).standard_deviation(self.scale_of(shape), self.setting)

    def scale_of(self, shape: tuple[int, ...]) -> float:
        """The scale for a parameter of that shape."""
        return self.scale / math.sqrt(math.prod(shape[:-1])) if self.is_over_fan_in else self.scale


def named(family: str) -> PriorFamily:
    """Returns a family by its name in the registry."""
    place = registry.PRIORS[family].family
    found: PriorFamily = registry.load_code(registry.PRIORS, family, place)()
    if family not in registry.PRIORS.built_in:
        from ensemble.priors.family import PriorFamily  # The contract, of others' families alone.

        registry.check_members(registry.PRIORS, family, found, PriorFamily)
    return found


def parse_prior(spec: str) -> tuple[Prior, ...]:
    """Reads a specification, as the module describes it; 'none' gives no priors.

    Raises:
        UserError: it cannot be read, or a scale is not positive.
    """
    if spec == NONE:
        return ()
    return tuple(_parse_term(spec, term.strip()) for term in _BETWEEN_TERMS.split(spec))


def families(spec: str) -> list[str]:
    """The names of the families in a specification, whether there are such or not."""
    terms = [_TERM.fullmatch(term.strip()) for term in _BETWEEN_TERMS.split(spec)]
    return [found["family"] for found in terms if found]


def _parse_term(spec: str, term: str) -> Prior:
    found = _TERM.fullmatch(term)
    if (
        found is None
        or found["family"] not in registry.PRIORS
        or not _SMALLEST < float(found["scale"]) < _LARGEST
    ):
        raise UserError(
            f"config.prior={spec!r}: {term!r} is no prior; write '{NONE}', or terms such as "
            "normal(1), *bias=laplace(0.5) or *kernel=normal(1.4/sqrt(fan_in)) with positive "
            f"scales, separated by commas; there are {registry.PRIORS.listing()}"
        )
    pattern, family, scale = found["pattern"] or "*", found["family"], float(found["scale"])
    setting = _parse_setting(spec, term, family, found["name"], found["value"])
    return Prior(pattern, family, scale, found["over_fan_in"] is not None, *setting)


def _parse_setting(
    spec: str, term: str, family: str, name: str | None, value: str | None
) -> tuple[float, ...]:
    """The value of a family's setting; empty where it has none."""
    wanted = named(family).setting
    if wanted is None and name is None:
        return ()
    where = f"config.prior={spec!r}: {term!r}"
    if wanted is None:
        raise UserError(f"{where}: {family} has no {name}; leave it out")
    if name != wanted.name or value is None:
        example = f"{family}(1, {wanted.name}={wanted.example})"
        raise UserError(f"{where} must say {wanted.name}, such as {example}")
    if not (_SMALLEST < float(value) < _LARGEST and wanted.is_valid(float(value))):
        raise UserError(f"{where}: {wanted.name}={value} {wanted.rule}; try {wanted.example}")
    return (float(value),)


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
    name = path_name(path)
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
