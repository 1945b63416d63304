"""The rules that values of a configuration must keep, one by one and together.

`validate` is called once, by `ensemble.train`, on whatever arrives.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np

from ensemble.config import (
    MASSES,
    METHODS,
    OPTIMIZERS,
    PRIOR,
    RANDOM_WALK,
    SAMPLERS,
    SCHEDULES,
    WALK_SHAPES,
    default_config,
    flatten,
    unknown_key,
)
from ensemble.errors import UserError
from ensemble.priors import parse_prior

MAX_STEPS = 2**31 - 1
"""Of a run, or draws of a chain: they are numbered in 32 bits on the devices."""


_MAX_MEMBERS = 2**20  # Of an ensemble or a posterior: each has its own scalars and report entries.


_MAX_WHOLE: Mapping[str, int] = {
    "seed": 2**32 - 1,
    "ensemble_size": _MAX_MEMBERS,
    "hmc.num_leapfrog_steps": 2**20,
    "hmc.num_warmup": 2**20,  # A list says what happens at each.
    "rwm.num_samples": 2**32 - 1,  # Random walks have a rule of their own.
}
"""The largest whole numbers, by key; of all others it is `MAX_STEPS`."""


_FLOATS = (1e-15, 1e15)  # The squares of what is beyond would leave float32.


def _positive(value: Any) -> bool:
    return value > 0


def _not_negative(value: Any) -> bool:
    return value >= 0


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value must be, in words too."""

    holds: Callable[[Any], bool]
    text: str


def _one_of(*names: str) -> Rule:
    return Rule(lambda value: value in names, f"must be one of {', '.join(names)}")


_POSITIVE = Rule(_positive, "must be positive")


_NOT_NEGATIVE = Rule(_not_negative, "must not be negative")


_EVEN = Rule(lambda value: value >= 0 and value % 2 == 0, "must be even and not negative")


_BELOW_ONE = Rule(lambda value: 0 <= value < 1, "must be at least 0 and below 1")


RULES: Mapping[str, Rule] = {
    "method": _one_of(*METHODS),
    "ensemble_size": _POSITIVE,
    "num_devices": _POSITIVE,
    "num_epochs": _NOT_NEGATIVE,
    "num_steps": _NOT_NEGATIVE,
    "seed": Rule(lambda value: 0 <= value < 2**32, "must be at least 0 and below 2**32"),
    "batch_size": _POSITIVE,
    "batching": _one_of("shared", "independent"),
    "augment.shift": _NOT_NEGATIVE,
    "label_smoothing": _BELOW_ONE,
    "optimizer": _one_of(*OPTIMIZERS),
    "learning_rate": _POSITIVE,
    "momentum": _BELOW_ONE,
    "weight_decay": _NOT_NEGATIVE,
    "schedule": _one_of(*SCHEDULES),
    "warmup_fraction": _BELOW_ONE,
    "early_stopping_epochs": _NOT_NEGATIVE,
    "on_nonfinite": _one_of("freeze", "stop"),
    "num_chains": _POSITIVE,
    "temperature": _POSITIVE,
    "num_factors": _POSITIVE,
    "hmc.step_size": _POSITIVE,
    "hmc.num_leapfrog_steps": _POSITIVE,
    "hmc.jitter": _BELOW_ONE,
    "hmc.num_warmup": _NOT_NEGATIVE,
    "hmc.num_burn_in": _NOT_NEGATIVE,
    "hmc.num_samples": _POSITIVE,
    "hmc.thin": _POSITIVE,
    "hmc.target_acceptance": Rule(lambda value: 0 < value < 1, "must be between 0 and 1"),
    "hmc.mass": _one_of(*MASSES),
    "rwm.scale": _POSITIVE,
    "rwm.shape": _one_of(*WALK_SHAPES),
    "rwm.num_warmup": _EVEN,
    "rwm.num_samples": Rule(lambda value: value > 0 and value % 2 == 0, "must be even, from 2"),
    "stop_at.rhat": Rule(lambda value: value == 0 or value > 1, "must be above 1, or 0 for never"),
    "stop_at.ess": _NOT_NEGATIVE,
    "log_every_steps": _POSITIVE,
    "eval_every_epochs": _POSITIVE,
    "plot_every_epochs": _POSITIVE,
    "checkpoint_every_epochs": _POSITIVE,
    "keep_checkpoints": _POSITIVE,
}


def validate(config: Mapping[str, Any]) -> ml_collections.FrozenConfigDict:
    """Completes a configuration with the defaults and checks every value.

    Args:
        config: a `ConfigDict` or a nested dict with some or all of the keys of `default_config`.

    Returns:
        The whole configuration, frozen.

    Raises:
        UserError: a key is unknown, or a value has the wrong type or breaks its rule.
    """
    complete = default_config()
    known = flatten(complete)
    for key, value in flatten(config).items():
        if key not in known:
            raise UserError(unknown_key(key, known))
        if isinstance(value, np.generic):
            value = value.item()
        try:
            complete.update_from_flattened_dict({key: value})
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"config.{key}={value!r} has the wrong type: {error}") from None
    for key, value in flatten(complete).items():
        _check_value(key, value, known[key])
    parse_prior(complete.prior)
    if complete.method in SAMPLERS:
        _check_sampling(complete)
    elif complete.method == RANDOM_WALK:
        _check_walk(complete)
    else:
        _check_training(complete)
    if complete.early_stopping_epochs and not complete.hold_out:
        raise UserError(
            f"config.early_stopping_epochs={complete.early_stopping_epochs} needs a validation "
            "split: set config.hold_out=True, or early_stopping_epochs=0"
        )
    return ml_collections.FrozenConfigDict(complete)


def _check_value(key: str, value: Any, default: Any) -> None:
    """Checks what holds for one value, whatever the others are.

    Raises:
        UserError: it breaks its rule, or is missing, or beyond what the devices' numbers hold.
    """
    if value is None:
        if default is not None:
            raise UserError(f"config.{key}=None must have a value; leave it out for {default!r}")
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"config.{key}={value} must be finite")
    smallest, largest = _FLOATS
    if isinstance(value, float) and value and not smallest <= abs(value) <= largest:
        raise UserError(
            f"config.{key}={value} must be from {smallest:g} to {largest:g} in size: its square "
            "must fit in float32"
        )
    most = _MAX_WHOLE.get(key, MAX_STEPS)
    if isinstance(value, int) and abs(value) > most:
        raise UserError(f"config.{key}={value} must be at most {most}")
    rule = RULES.get(key)
    if rule is not None and not rule.holds(value):
        raise UserError(f"config.{key}={value!r} {rule.text}")


_NOT_IN_TRAINING: Mapping[str, Any] = {
    "temperature": 1.0,
    "init_from": PRIOR,
    "stop_at.rhat": 0.0,
    "stop_at.ess": 0.0,
}
"""Keys of samplers that SGD cannot heed, with the value that they must keep."""


def _check_training(config: ml_collections.ConfigDict) -> None:
    """Checks what holds for SGD alone.

    Raises:
        UserError: the duration is not clear, or a key that is for samplers is set.
    """
    if bool(config.num_epochs) == bool(config.num_steps):
        raise UserError(
            f"config.num_epochs={config.num_epochs} and config.num_steps={config.num_steps}: "
            "set exactly one of the two, the other to 0"
        )
    _check_neutral(
        config,
        _NOT_IN_TRAINING,
        "is for samplers",
        lambda key: f", or choose one of {', '.join(SAMPLERS)}",
    )


_NOT_IN_A_POSTERIOR: Mapping[str, Any] = {
    "num_epochs": None,
    "num_steps": None,
    "augment.shift": 0,
    "augment.flip": False,
    "label_smoothing": 0.0,
    "class_weights": "none",
    "weight_decay": 0.0,
    "early_stopping_epochs": 0,
}
"""Keys that samplers have no place for, with the value that they must keep."""


def _check_sampling(config: ml_collections.ConfigDict) -> None:
    """Checks what holds for samplers alone.

    Raises:
        UserError: a key that they cannot heed is set, there is no prior to sample, or there are
            too many chains or draws.
    """
    _check_neutral(
        config, _NOT_IN_A_POSTERIOR, "is not part of a posterior", _says("hmc.num_samples")
    )
    if config.prior == "none":
        raise UserError(
            f"config.method={config.method!r} samples a posterior, which config.prior='none' does "
            "not have; set it to such as 'normal(1)'"
        )
    if config.num_chains > _MAX_MEMBERS:
        raise UserError(
            f"config.num_chains={config.num_chains} must be at most {_MAX_MEMBERS} with "
            f"config.method={config.method!r}; millions of chains are for {RANDOM_WALK!r}"
        )
    num_draws = config.hmc.num_warmup + config.hmc.num_burn_in + config.hmc.num_samples
    if num_draws > MAX_STEPS:
        raise UserError(
            f"config.hmc has {num_draws} draws of each chain in all, which must be at most "
            f"{MAX_STEPS}; lower hmc.num_samples"
        )
    if config.hmc.thin > config.hmc.num_samples:
        raise UserError(
            f"config.hmc.thin={config.hmc.thin} keeps none of config.hmc.num_samples="
            f"{config.hmc.num_samples} draws; lower it"
        )
    if config.method == "mclmc" and config.hmc.mass == "dense":
        raise UserError("config.hmc.mass='dense' is for hmc and nuts; with mclmc use 'diagonal'")


_NOT_IN_A_WALK: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "cnn",
    "num_epochs": None,
    "num_steps": None,
    "prior": "none",
    "temperature": 1.0,
    "init_from": PRIOR,
}
"""Keys that random walks have no place for, with the value that they must keep."""


_MIN_CHAINS_TO_STOP = 16


def _check_walk(config: ml_collections.ConfigDict) -> None:
    """Checks what holds for random walks alone.

    Raises:
        UserError: a key that they cannot heed is set, steps would not come in pairs, or too few
            chains are to say when to end.
    """
    _check_neutral(config, _NOT_IN_A_WALK, "is not for random walks", _says("rwm.num_samples"))
    if (config.stop_at.rhat or config.stop_at.ess) and config.num_chains < _MIN_CHAINS_TO_STOP:
        raise UserError(
            f"config.stop_at needs {_MIN_CHAINS_TO_STOP} chains with config.method="
            f"{RANDOM_WALK!r}, whose errors are the spread between chains; there are "
            f"{config.num_chains}"
        )
    if config.log_every_steps % 2:
        raise UserError(
            f"config.log_every_steps={config.log_every_steps} must be even with config.method="
            f"{RANDOM_WALK!r}, for steps are taken in pairs; use {config.log_every_steps + 1}"
        )


def _says(duration: str) -> Callable[[str], str]:
    """The remedy for keys of SGD's duration: the one that says how long a sampler runs."""
    return lambda key: f"; {duration} says how long" if key.startswith("num_") else ""


def _check_neutral(
    config: ml_collections.ConfigDict,
    neutral_values: Mapping[str, Any],
    why: str,
    remedy: Callable[[str], str],
) -> None:
    """Refuses keys that a method cannot heed, unless they have the values that say nothing.

    Args:
        config: of the run.
        neutral_values: by key, what says nothing.
        why: the method cannot heed them.
        remedy: beside leaving it, for a key.

    Raises:
        UserError: one of them is set.
    """
    flat = flatten(config)
    for key, neutral in neutral_values.items():
        if flat[key] != neutral and (flat[key] or neutral):
            raise UserError(
                f"config.{key}={flat[key]!r} {why}: with config.method={config.method!r} leave it "
                f"at {neutral!r}{remedy(key)}"
            )
