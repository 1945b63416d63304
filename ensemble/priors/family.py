"""The contract of families of priors: a centred density of the values of one parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax


class Setting(NamedTuple):
    """The number that a family needs beside its scale, as in `student_t(1, df=4)`.

    Attributes:
        name: in a specification.
        is_valid: whether the family can have a value, which is positive.
        rule: what a value must be, for messages.
        example: a value for messages.
    """

    name: str
    is_valid: Callable[[float], bool]
    rule: str
    example: str


class PriorFamily(Protocol):
    """A family of densities; `setting` below is NaN where the family has none."""

    setting: Setting | None

    def log_density(self, values: jax.Array, scale: float, setting: float) -> jax.Array:
        """Log density of the values of one parameter up to a constant, nats; a scalar."""

    def sample(
        self, rng_key: jax.Array, shape: tuple[int, ...], scale: float, setting: float
    ) -> jax.Array:
        """Draws the values of one parameter, float32 of that shape."""

    def standard_deviation(self, scale: float, setting: float) -> float:
        """The standard deviation of each value."""
