"""Hyper-deep ensembles: members that descend, each with settings of its own.

Wenzel, Snoek, Tran and Jenatton, "Hyperparameter ensembles for robustness and uncertainty
quantification" (2020), arXiv:2006.13570: members that differ in their settings differ more in what
they say than by their start alone. Here each member draws its learning rate and weight decay from
given ranges, by its own key. All members are one program still.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ensemble import pytrees
from ensemble.config import Config
from ensemble.methods import training
from ensemble.methods.optimizers import Descent, descent_of_each
from ensemble.pytrees import ByName
from ensemble.runtime.algorithm import Stream
from ensemble.runtime.method import Method
from ensemble.tasks.supervised import Supervised

_VARIED = ("learning_rate", "weight_decay")


class SettingsReport(training.DescentReport):
    """Report of members with settings of their own."""

    def sections(self, run) -> ByName:
        """Settings of the members, [M] by name."""
        keys = pytrees.keys_of(random.key(self.config.seed), np.array(run.numbers))
        found = jax.vmap(partial(draw_settings, self.config))(keys)
        settings = {name: one.tolist() for name, one in found.items() if self.config[name]}
        return {"hyper_ensemble": {"members": list(run.numbers), **settings}}


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration."""
    return training.create(config, task, varied_descent, report=SettingsReport)


def draw_settings(config: Config, rng_key: jax.Array) -> dict[str, jax.Array]:
    """The settings [] of a member that vary, by its key."""
    keys = random.split(random.fold_in(rng_key, Stream.SETTINGS), 3)
    found = {}
    for key, name in zip(keys, _VARIED, strict=False):
        low, high = map(math.log, config.hyper_ensemble[f"{name}_factor"])
        factor = jnp.exp(random.uniform(key, (), minval=low, maxval=high))
        found[name] = config[name] * factor
    return found


def varied_descent(config: Config, num_steps: int) -> Descent:
    """Descent of members over a horizon of `num_steps`, each by a rate and decay of its own."""

    def seed(state, rng_key):
        return state._replace(hyperparams=draw_settings(config, rng_key))

    return descent_of_each(config, num_steps, *_VARIED)._replace(seed=seed)
