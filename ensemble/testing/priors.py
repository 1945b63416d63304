"""What every family of priors promises: a centred density, and draws of it."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import registry
from ensemble.errors import UserError
from ensemble.priors import named
from ensemble.testing.promises import Promise, demand, keep_all, promise

_SHAPE = (3, 3, 8, 16)
_SCALE = 0.7


@dataclasses.dataclass(frozen=True)
class PriorCase:
    """A family of priors.

    Attributes:
        name: of the family.
        setting: its further number; NaN where it has none.
    """

    name: str
    setting: float
    kind: str = "prior"

    @functools.cached_property
    def family(self) -> Any:
        """Its code."""
        return named(self.name)


def prior_case(name: str, setting: float | None = None) -> PriorCase:
    """A family as `check_prior` takes it.

    Raises:
        UserError: there is none of that name, or it has no such setting.
    """
    registry.find("prior", name)
    wanted = named(name).setting
    if wanted is None:
        if setting is not None:
            raise UserError(f"the prior {name!r} has no setting; leave {setting} out")
        return PriorCase(name, math.nan)
    value = float(wanted.example if setting is None else setting)
    if setting is not None and not wanted.is_valid(value):
        raise UserError(f"{name}: {wanted.name}={value} {wanted.rule}; try {wanted.example}")
    return PriorCase(name, value)


def check_prior(name: str, setting: float | None = None) -> None:
    """Checks what every family of priors promises.

    Args:
        name: of a family that is built in, registered or installed.
        setting: its further number; left out: the example that it gives.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is none of that name, or it has no such setting.
    """
    keep_all(PROMISES, prior_case(name, setting))


_FOUND: list[Promise] = []


@promise(_FOUND, "Setting: example and is_valid")
def the_example_is_valid(case: PriorCase) -> None:
    """The example of its setting is one that it takes."""
    wanted = case.family.setting
    demand(wanted is None or wanted.is_valid(case.setting), f"{case.setting} is not valid")


@promise(_FOUND, "sample and standard_deviation")
def draws_have_the_deviation_that_is_said(case: PriorCase) -> None:
    """Draws are float32 and centred, and have the standard deviation that is said."""
    shape = (*_SHAPE[:2], 40, 400)
    draws = np.asarray(case.family.sample(jax.random.key(0), shape, _SCALE, case.setting))
    demand(draws.shape == shape, f"draws of the shape {shape} have the shape {draws.shape}")
    demand(draws.dtype == np.float32, f"draws are {draws.dtype}, not float32")
    expected = case.family.standard_deviation(_SCALE, case.setting)
    np.testing.assert_allclose(draws.std(), expected, rtol=0.05, err_msg="standard deviation")
    by_filter = draws.mean(axis=(0, 1))  # Values of one filter may be correlated, filters are not.
    most = 5 * by_filter.std() / np.sqrt(by_filter.size)
    demand(abs(draws.mean()) < most, f"the mean of draws is {draws.mean():.3g}, beyond {most:.3g}")


@promise(_FOUND, "log_density and sample: both take the same scale")
def draws_are_of_the_density(case: PriorCase) -> None:
    """The density of one value, normalised numerically, has the share of draws in an interval."""
    at = np.linspace(-25, 25, 20_001) * 0.48
    values, lengths = np.sinh(at), np.cosh(at) * (at[1] - at[0])
    one = jax.vmap(lambda value: case.family.log_density(value, _SCALE, case.setting))
    shaped = jnp.asarray(values[:, None, None], jnp.float32)
    log_density = np.asarray(jax.jit(one)(shaped), np.float64)
    mass = np.exp(log_density - log_density.max()) * lengths
    draws = np.asarray(
        jax.vmap(lambda key: case.family.sample(key, (1, 1), _SCALE, case.setting))(
            jax.random.split(jax.random.key(3), 20_000)
        )
    ).ravel()
    deviation = case.family.standard_deviation(_SCALE, case.setting)
    for width in (0.3, 1.0, 2.0):
        share = mass[np.abs(values) < width * deviation].sum() / mass.sum()
        found = np.mean(np.abs(draws) < width * deviation)
        told = (
            f"{found:.4f} of the draws, and {share:.4f} of the density, within {width} deviations"
        )
        demand(abs(found - share) < 0.02, told)


@promise(_FOUND, "log_density: divide the values by the scale")
def the_density_is_symmetric_highest_at_zero_and_scales(case: PriorCase) -> None:
    """The density is symmetric and highest at 0, and a scale stretches it."""
    values, setting = jax.random.normal(jax.random.key(1), _SHAPE), case.setting
    at = case.family.log_density
    here, highest = float(at(values, 1.0, setting)), float(at(0 * values, 1.0, setting))
    np.testing.assert_allclose(float(at(-values, 1.0, setting)), here, rtol=1e-6)
    demand(here < highest, f"{here:.6g} at draws is not below {highest:.6g} at 0")
    wider = at(2 * values, 2.0, setting) - at(0 * values, 2.0, setting)
    np.testing.assert_allclose(float(wider), here - highest, rtol=1e-4)


@promise(_FOUND, "log_density: a root or a logarithm of 0, or a square that leaves float32")
def gradients_are_finite(case: PriorCase) -> None:
    """Gradients are finite at 0 and far from it."""
    for size in (0.0, 1e4):
        slope = jax.grad(case.family.log_density)(jnp.full(_SHAPE, size), 0.5, case.setting)
        demand(np.isfinite(slope).all(), f"the gradient at {size:g} is not finite")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of families of priors, in order."""
