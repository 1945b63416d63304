"""The method `varied`: members that descend as `sgd`, each with settings of its own.

Wenzel, Snoek, Tran and Jenatton, "Hyperparameter ensembles for robustness and uncertainty
quantification" (2020), arXiv:2006.13570: members that differ in their settings differ more in what
they say than by their start alone. Here each member draws its learning rate, weight decay, label
smoothing and dropout from given ranges, by its own key, and sees the images of a batch augmented in
its own way. All members are one program still.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from ensemble.errors import UserError
from ensemble.methods.members.engine import ChunkInfo, Engine, EngineState
from ensemble.methods.members.engine_method import duration
from ensemble.methods.members.member import Stream
from ensemble.methods.members.optimizers import (
    Descent,
    create_optimizer,
    learning_rate_schedule,
)
from ensemble.methods.members.sgd import SGD
from ensemble.methods.members.varied_keys import DROPOUT, SMOOTHING, parse_range
from ensemble.sharding import processes

_GRID = 2.0**16
"""Steps in 1 that shares are rounded to."""
_OF_OBJECTIVE = ("label_smoothing", "dropout")
"""The settings that are not of the optimiser."""


class Varied(SGD):
    """Members of `SGD` with settings of their own; the arguments are those of `EngineMethod`.

    Raises:
        UserError: as of `SGD`, or the network or the likelihood has not what is to vary.
    """

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of `SGD`, whose members have settings of their own."""
        config, ranges = self.config, self.config.varied
        task: Any = self.task  # Supervised.
        if any(parse_range(ranges.label_smoothing)) and not hasattr(
            task.likelihood, "smoothed_log_prob"
        ):
            raise UserError(
                f"config.{SMOOTHING}={ranges.label_smoothing!r} is for classes, and "
                f"config.likelihood={task.likelihood.name!r} is for numbers; set it to '0,0'"
            )
        if ranges.dropout:
            try:
                task.with_dropout(0.5)
            except UserError as error:
                line = f"config.{DROPOUT}={ranges.dropout!r}: {error}; leave it empty"
                raise UserError(line) from None
        num_steps = duration(config, task)
        devices = processes.devices(config.num_devices)
        descent = varied_descent(config, num_steps)
        return Engine(config, task, devices, config.ensemble_size, num_steps, descent, others)

    def init(self, rng_key: jax.Array) -> EngineState:
        """Starts the members, member k from `fold_in(rng_key, k)`."""
        state = super().init(rng_key)
        self._settings = self._settings_of(state)
        return state

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> EngineState:
        """The inverse of `to_host`, on any devices; members have the settings that they had."""
        state = super().from_host(rng_key, arrays, counters)
        self._settings = self._settings_of(state)
        return state

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        scalars = super().scalars(info)
        peak_share = scalars.pop("train/learning_rate") / self.config.learning_rate
        for name, values in self._settings.items():
            share = peak_share if name == "learning_rate" else 1
            for k, value in zip(self.indices, values, strict=True):
                scalars[f"train/member_{k:02d}/{name}"] = float(value * share)
        return scalars

    def report_sections(
        self, state: EngineState, draws: Any, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """What members have drawn, of those that this method moves."""
        settings = {name: one.tolist() for name, one in self._settings_of(state).items()}
        return {"varied": {"members": list(self.indices), **settings}}

    def _settings_of(self, state: EngineState) -> dict[str, np.ndarray]:
        """Fetches what members have of their own, [M] by the names of settings."""
        found = jax.vmap(functools.partial(draw_settings, self.config))(state.members.rng_key)
        if not self.config.weight_decay:
            del found["weight_decay"]
        return self.engine.programs.placement.gather_members(found)


def draw_settings(
    config: ml_collections.FrozenConfigDict, rng_key: jax.Array
) -> dict[str, jax.Array]:
    """The settings [] of a member that vary, by its key.

    Args:
        config: of the run.
        rng_key: of the member.
    """
    ranges = config.varied
    factors = {
        "learning_rate": (ranges.learning_rate_factor, config.learning_rate),
        "weight_decay": (ranges.weight_decay_factor, config.weight_decay),
    }
    shares = {"label_smoothing": ranges.label_smoothing, "dropout": ranges.dropout}
    keys = iter(jax.random.split(jax.random.fold_in(rng_key, Stream.SETTINGS), 4))
    found = {}
    for name, (text, middle) in factors.items():
        low, high = map(math.log, parse_range(text))
        found[name] = middle * jnp.exp(jax.random.uniform(next(keys), (), minval=low, maxval=high))
    for name, text in shares.items():
        key = next(keys)
        if text and (name == "dropout" or any(parse_range(text))):  # No dropout is a rate too.
            low, high = parse_range(text)
            drawn = jax.random.uniform(key, (), minval=low, maxval=high)
            # Programs of other members or devices may round otherwise, and a mask of dropout tell.
            found[name] = jnp.clip(jnp.round(drawn * _GRID) / _GRID, low, high)
    return found


def varied_descent(config: ml_collections.FrozenConfigDict, num_steps: int) -> Descent:
    """How members descend, over a horizon of `num_steps`: each by a rate and decay of its own."""
    schedule = learning_rate_schedule(config, num_steps)

    def optimizer_of(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
        share = learning_rate / config.learning_rate
        return create_optimizer(config, lambda count: share * schedule(count), weight_decay)

    optimizer = optax.inject_hyperparams(optimizer_of)(
        learning_rate=config.learning_rate, weight_decay=config.weight_decay
    )
    settings_of = functools.partial(draw_settings, config)

    def seed(state: Any, rng_key: jax.Array) -> Any:
        settings = settings_of(rng_key)
        return state._replace(hyperparams={name: settings[name] for name in state.hyperparams})

    def own(rng_key: jax.Array) -> dict[str, jax.Array]:
        settings = settings_of(rng_key)
        return {name: settings[name] for name in _OF_OBJECTIVE if name in settings}

    return Descent(schedule, optimizer, seed, own)
