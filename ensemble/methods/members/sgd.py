"""The method `sgd`: every member descends its own loss, all in one compiled step."""

from collections.abc import Mapping
from typing import Any

import jax

from ensemble.methods.members.engine import ChunkInfo, Engine, EngineState
from ensemble.methods.members.engine_method import EngineMethod, duration
from ensemble.methods.members.optimizers import create_descent, say_what_stretching_does
from ensemble.sharding import processes
from ensemble.task import Learned


class SGD(EngineMethod[EngineState]):
    """Stochastic gradient descent of every member; the arguments are those of `EngineMethod`.

    Raises:
        UserError: the data do not suit it, or it takes too many steps, or too much memory.
    """

    charts: Mapping[str, str] = {"training loss": "train/member_[0-9]+/loss"}

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of members that descend as the configuration says."""
        return self.engine_of(self.task, others)

    def engine_of(self, task: Learned, others: Mapping[str, int] | None) -> Engine:
        """The same of members that learn a task in place of the run's."""
        config = self.config
        num_steps = duration(config, task)
        devices = processes.devices(config.num_devices)
        descent = create_descent(config, num_steps)
        return Engine(config, task, devices, config.ensemble_size, num_steps, descent, others)

    def init(self, rng_key: jax.Array) -> EngineState:
        """Starts the members, member k from `fold_in(rng_key, k)`."""
        return self.started(rng_key)

    def advance(
        self, state: EngineState, limit: int | None = None
    ) -> tuple[EngineState, ChunkInfo]:
        """Takes the steps up to the next that is due; neither result is waited for."""
        return self.engine.advance(state, limit)

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> EngineState:
        """The inverse of `to_host`, on any devices; the members need no more of `rng_key`."""
        return self.restored(arrays, counters)

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: what differs, and what to do.
        """
        super().check_resumable(counters, where)
        last_step = self.engine.num_steps
        if last_step > counters["last_step"]:
            learning_rate = self.engine.descent.learning_rate
            say_what_stretching_does(self.config, counters, learning_rate, last_step)
