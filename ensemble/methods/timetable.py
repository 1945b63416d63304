"""When the chains of a run take their draws, and how large their steps are until then."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

DECAY = 1 / 3
"""The exponent of the polynomial schedule: the rate at which bias and variance fall together (Teh,
Thiery and Vollmer 2016, "Consistency and fluctuations for stochastic gradient Langevin
dynamics")."""


class Timetable(NamedTuple):
    """Equal cycles of steps: first those that leave no draws, then one draw in so many steps.

    Attributes:
        num_burn_in: steps of a cycle before those that lead to draws.
        num_samples: draws of a cycle.
        steps_per_draw: from one draw to the next.
        num_cycles: of the run.
    """

    num_burn_in: int
    num_samples: int
    steps_per_draw: int
    num_cycles: int

    @property
    def cycle_steps(self) -> int:
        """Steps of a cycle."""
        return self.num_burn_in + self.num_samples * self.steps_per_draw

    @property
    def num_steps(self) -> int:
        """Steps of a run."""
        return self.num_cycles * self.cycle_steps

    def draws_before(self, step: Any) -> Any:
        """Draws that a chain has taken when it has taken so many steps, traced or not."""
        cycle = step // self.cycle_steps
        within = step % self.cycle_steps
        passed = (within - self.num_burn_in) * (within > self.num_burn_in)
        return cycle * self.num_samples + passed // self.steps_per_draw


def timetable(config: ml_collections.FrozenConfigDict) -> Timetable:
    """The timetable of a configuration."""
    own = config.sgmcmc
    return Timetable(own.num_burn_in, own.num_samples, own.steps_per_draw, own.num_cycles)


def learning_rate(config: ml_collections.FrozenConfigDict, step: Any) -> jax.Array:
    """Returns what the gradient of the mean loss is multiplied by in a step, counted from 0.

    A polynomial schedule keeps to the learning rate over the time of the burn-in and falls from
    there on. A cyclical one falls by a cosine in every cycle and begins the next at the top.
    """
    peak = config.learning_rate
    times = timetable(config)
    kind = config.sgmcmc.schedule
    if kind == "polynomial":
        scale = max(times.num_burn_in, times.steps_per_draw)
        return jnp.float32(peak * (1 + step / scale) ** -DECAY)
    if kind == "cyclical":
        share = (step % times.cycle_steps) / times.cycle_steps
        return peak / 2 * (1 + jnp.cos(math.pi * share))
    return jnp.full(jnp.shape(step), peak, jnp.float32)


def is_noisy(config: ml_collections.FrozenConfigDict, step: Any) -> jax.Array:
    """Returns whether a step adds noise; without it a step descends.

    The steps of a cycle that leave no draws have none (Zhang et al. 2020, arXiv:1902.03932).
    """
    times = timetable(config)
    within = jnp.asarray(step) % times.cycle_steps
    return (within >= times.num_burn_in) | (config.sgmcmc.schedule != "cyclical")
