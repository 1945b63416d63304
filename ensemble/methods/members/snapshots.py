"""The method `snapshots`: members descend in cycles, and each cycle leaves a set of variables.

G. Huang et al. 2017, "Snapshot ensembles: train 1, get M for free", arXiv:1704.00109. The learning
rate falls from its peak to 0 along half a cosine, and jumps back; all sets of a member together are
its prediction. So one training of a member gives the predictions of several networks.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ensemble.errors import UserError
from ensemble.fitted import Fitted, OnDisk
from ensemble.methods.members.engine import Engine
from ensemble.methods.members.engine_method import duration
from ensemble.methods.members.optimizers import Descent, create_optimizer, in_one_program
from ensemble.methods.members.several_sets import SetsState, SeveralSets, fitted_sets
from ensemble.sharding import processes

_NOUN = "snapshot"


class Snapshots(SeveralSets):
    """Cycles of descent; the arguments are those of `EngineMethod`.

    Raises:
        UserError: the data do not suit it, or it takes too many steps, or fewer than cycles.
    """

    set_noun = _NOUN
    length = "the cycles"

    @property
    def num_kept(self) -> int:
        """A set of each cycle."""
        return int(self.config.snapshots.num_cycles)

    @functools.cached_property
    def stops(self) -> list[int]:
        """The ends of cycles."""
        return cycle_ends(self.engine.num_steps, self.config.snapshots.num_cycles)

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of members whose learning rate goes in cycles."""
        config, task = self.config, self.task
        num_steps, num_cycles = duration(config, task), config.snapshots.num_cycles
        if num_steps < num_cycles:
            raise UserError(
                f"config.snapshots.num_cycles={num_cycles} cycles need as many steps, and this run "
                f"has {num_steps}; lower it, or raise config.num_epochs"
            )
        schedule = cyclical_cosine(config.learning_rate, num_steps, num_cycles)
        descent = Descent(schedule, create_optimizer(config, schedule))
        devices = processes.devices(config.num_devices)
        return Engine(config, task, devices, config.ensemble_size, num_steps, descent, others)

    def taken_at(self, state: SetsState) -> SetsState:
        """Takes the members' variables."""
        # The next step takes the members' own buffers.
        variables = jax.tree.map(jnp.copy, state.members.members.variables)
        name = f"cycle_{self.stops.index(state.step):03d}"
        return state._replace(taken={**state.taken, name: variables})


def fitted(saved: OnDisk) -> Fitted:
    """The sets of members that are on disk: see `ensemble.entries.MethodEntry`."""
    return fitted_sets(saved, _NOUN)


def cycle_ends(num_steps: int, num_cycles: int) -> list[int]:
    """The steps after which cycles end, as evenly as whole steps can be."""
    return [math.ceil((i + 1) * num_steps / num_cycles) for i in range(num_cycles)]


def cyclical_cosine(peak: float, num_steps: int, num_cycles: int) -> optax.Schedule:
    """A learning rate by step, which falls from the peak along half a cosine in each cycle."""
    starts = jnp.array([0, *cycle_ends(num_steps, num_cycles)], jnp.int32)

    def learning_rate(step: Any) -> jax.Array:
        cycle = jnp.clip(jnp.searchsorted(starts, step, side="right") - 1, 0, num_cycles - 1)
        done = (step - starts[cycle]) / (starts[cycle + 1] - starts[cycle])
        return 0.5 * peak * (1 + jnp.cos(jnp.pi * done))

    return in_one_program(learning_rate)
