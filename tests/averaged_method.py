"""A method that is not the package's: members descend, and the mean of their parameters predicts.

As a program it registers itself and trains: `averaged_method.py WORKDIR JSON_OF_CONFIG`.
"""

import json
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
from run_parts import inputs_of
from small_runs import make_blobs, small_config

import ensemble
from ensemble import registry
from ensemble.fitted import Fitted
from ensemble.methods.members.engine import Engine, EngineState
from ensemble.methods.members.engine_method import EngineMethod, duration
from ensemble.methods.members.optimizers import create_descent
from ensemble.sharding import processes
from ensemble.storage.predictions import MemberPredictions

MEAN = "mean"


class AveragedState(NamedTuple):
    """Members, and the mean [num_places, ...] of the parameters that they had after each chunk."""

    members: EngineState
    mean: Any

    @property
    def step(self):
        return self.members.step


class Averaged(EngineMethod[AveragedState]):
    """The mean over the ends of epochs, of SGD at the configured rate."""

    num_kept = 1

    def make_engine(self, others):
        config, task = self.config, self.task
        num_steps = duration(config, task)
        devices = processes.devices(config.num_devices)
        descent = create_descent(config, num_steps)
        return Engine(config, task, devices, config.ensemble_size, num_steps, descent, others)

    def moved(self, state):
        return state.members

    def init(self, rng_key):
        members = self.started(rng_key)
        return AveragedState(members, jax.tree.map(jax.numpy.zeros_like, members.members.params))

    def advance(self, state, limit=None):
        members, info = self.engine.advance(state.members, limit)
        mean = state.mean
        epoch, rest = divmod(members.step, self.steps_per_epoch)
        if not rest:
            mean = jax.tree.map(lambda m, p: m + (p - m) / epoch, mean, members.members.params)
        return AveragedState(members, mean), info

    def saved(self, state, gather):
        arrays, counters = super().saved(state, gather)
        return {**arrays, MEAN: gather(state.mean)}, counters

    def from_host(self, rng_key, arrays, counters):
        arrays = dict(arrays)
        mean = self.engine.programs.placement.place_members(arrays.pop(MEAN))
        return AveragedState(self.restored(arrays, counters), mean)

    def predict_split(self, state, name, draws=None):
        inputs = inputs_of(self.task.dataset, name)
        return MemberPredictions(self.engine.programs.predict({"params": state.mean}, inputs))

    def fitted(self, state, live, draws):
        mean = self.engine.programs.placement.gather_members(state.mean)
        return _fitted(mean, [self.indices.index(k) for k in live])


def fitted(saved):
    """What predicts of a checkpoint on disk."""
    return _fitted(saved.arrays[MEAN], saved.live)


def _fitted(mean, rows):
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[list(rows)], mean)
    return Fitted.one_each({"params": params})


ENTRY = registry.MethodEntry(
    "averaged_method:Averaged",
    "ensemble.methods.members.sgd_keys:BLOCK",
    tasks=("supervised",),
    fitted="averaged_method:fitted",
)


def train(workdir, **overrides):
    """Trains by the method, which has been registered."""
    config = small_config(method="averaged", **overrides)
    return ensemble.train(config, make_blobs(), str(workdir), show_progress=False)


if __name__ == "__main__":
    registry.register("method", "averaged", ENTRY)
    train(sys.argv[1], **json.loads(sys.argv[2]))
