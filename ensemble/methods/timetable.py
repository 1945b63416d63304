"""When the chains of a run take their draws, and how large their steps are until then."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from ensemble import pytrees


class Timetable(NamedTuple):
    """Equal cycles of steps: first those that leave no draws, then one draw in so many steps.

    Attributes:
        num_burn_in: Steps of a cycle before those that lead to draws.
        num_samples: Draws of a cycle.
        steps_per_draw: Steps from one draw to the next.
        num_cycles: Cycles of the run.
        schedule: `config.sgmcmc.schedule`.
        peak: Largest learning rate.
    """

    num_burn_in: int
    num_samples: int
    steps_per_draw: int
    num_cycles: int
    schedule: str = "constant"
    peak: float = 0.0

    @property
    def cycle_steps(self) -> int:
        """Steps of a cycle."""
        return self.num_burn_in + self.num_samples * self.steps_per_draw

    @property
    def num_steps(self) -> int:
        """Steps of a run."""
        return self.num_cycles * self.cycle_steps

    def draws_before(self, step: Any) -> Any:
        """Returns the draws that a chain has taken after so many steps, traced or not."""
        cycle = step // self.cycle_steps
        within = step % self.cycle_steps
        passed = (within - self.num_burn_in) * (within > self.num_burn_in)
        return cycle * self.num_samples + passed // self.steps_per_draw

    def learning_rate(self, step: Any) -> jax.Array:
        """Returns what the gradient of the mean loss is multiplied by in a step, counted from 0.

        A cyclical schedule falls by a cosine in every cycle and begins the next at the top.
        """
        if self.schedule == "cyclical":
            share = (step % self.cycle_steps) / self.cycle_steps
            return self.peak / 2 * (1 + jnp.cos(math.pi * share))
        return jnp.full(jnp.shape(step), self.peak, jnp.float32)

    def is_noisy(self, step: Any) -> jax.Array:
        """Returns whether a step adds noise; without it a step descends.

        The steps of a cycle that leave no draws have none (Zhang et al. 2020, arXiv:1902.03932).
        """
        within = jnp.asarray(step) % self.cycle_steps
        return (within >= self.num_burn_in) | (self.schedule != "cyclical")


def timetable(config: ml_collections.FrozenConfigDict) -> Timetable:
    """Returns the timetable of a configuration."""
    return Timetable(**pytrees.without(config.sgmcmc, "preconditioner"), peak=config.learning_rate)
