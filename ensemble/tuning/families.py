"""Families of methods that are compared: how each spends the training steps of some networks.

A family is one entry of `FAMILIES`. Its networks are those of the configuration that is compared,
and nothing else is tuned for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Settings = Mapping[str, Any]
"""Keys of a configuration, flat."""

SINGLE = "single"
_WIDE_PRIOR = "*kernel=normal(8/sqrt(fan_in)), *=normal(1)"
"""The prior of `configs/mnist_sghmc.py`, with which a posterior predicts better than by He's."""


class Family(NamedTuple):
    """A method, with how it spends its steps.

    Attributes:
        name: Name of the family.
        does: Description in some words.
        method: Value of `config.method`.
        settings: Called with the configuration that is compared, flat, the steps of one network,
            and how many networks' steps there are; returns further keys.
        starts_from: Family whose networks of the same round it starts from; empty: none.
    """

    name: str
    does: str
    method: str
    settings: Callable[[Settings, int, int], Settings]
    starts_from: str = ""


def _networks(steps: int, times: int, number: int) -> Settings:
    """Divides the steps among a number of networks."""
    return {"num_steps": max(1, steps * times // number), "num_epochs": 0, "ensemble_size": number}


def _single(config: Settings, steps: int, times: int) -> Settings:
    return _networks(steps, times, 1)


def _several(config: Settings, steps: int, times: int) -> Settings:
    """Trains as many networks as there are steps for; two of half the length at least."""
    return _networks(steps, times, max(2, times))


def _full_length(config: Settings, steps: int, times: int) -> Settings:
    return _networks(steps, times, times)


def _longer(config: Settings, steps: int, times: int) -> Settings:
    """Networks of twice the length, which these methods bear."""
    return _networks(steps, times, max(1, times // 2))


def _folds(config: Settings, steps: int, times: int) -> Settings:
    """Each of four members at least holds out a fold of its own."""
    number = max(4, times)
    patience = config.get("early_stopping_epochs") or 40
    folds = {"kfold_bagging.folds": number, "early_stopping_epochs": patience}
    return {**_networks(steps, times, number), **folds}


def _with_dropout(config: Settings, steps: int, times: int) -> Settings:
    """The network's own dropout; a tenth if it has the key and no dropout."""
    own = {"dropout": 0.1} if config.get("dropout") == 0 else {}
    return {**_longer(config, steps, times), **own}


def _cycles(config: Settings, steps: int, times: int) -> Settings:
    keys = _longer(config, steps, times)
    return {**keys, "snapshot_ensemble.num_cycles": min(5, max(2, keys["num_steps"] // 20))}


def _iterates(config: Settings, steps: int, times: int) -> Settings:
    keys = _full_length(config, steps, times)
    return {**keys, "swag.num_iterates": min(20, max(2, keys["num_steps"] // 4))}


def _chains(config: Settings, steps: int, times: int) -> Settings:
    """One chain, or several of twice the length; they descend like networks by plain gradients."""
    number = max(1, times // 2)
    length = max(1, steps * times // number)
    draws = min(20, max(1, length // 2))
    apart = max(1, (length - length // 4) // draws)
    keys: dict[str, Any] = {
        "num_chains": number,
        "sgmcmc.schedule": "cyclical",
        "sgmcmc.num_burn_in": max(0, length - draws * apart),
        "sgmcmc.num_samples": draws,
        "sgmcmc.steps_per_draw": apart,
    }
    if config["prior"] == "none":
        keys["prior"] = _WIDE_PRIOR
    if config["optimizer"] != "sgd":
        keys["learning_rate"] = 0.05
    return keys


def _nothing(config: Settings, steps: int, times: int) -> Settings:
    return {}


FAMILIES: tuple[Family, ...] = (
    Family(SINGLE, "one network", "deep_ensemble", _single),
    Family("deep_ensemble", "several networks", "deep_ensemble", _several),
    Family("kfold_bagging", "several that hold out rows of each other", "kfold_bagging", _folds),
    Family("mc_dropout", "networks that predict with dropout", "mc_dropout", _with_dropout),
    Family("batch_ensemble", "estimators that share kernels", "batch_ensemble", _longer),
    Family("packed_ensemble", "estimators in one wider network", "packed_ensemble", _longer),
    Family("snapshot_ensemble", "networks at the ends of cycles", "snapshot_ensemble", _cycles),
    Family("swag", "draws around networks' last steps", "swag", _iterates),
    Family("sghmc", "draws of a posterior", "sghmc", _chains, "deep_ensemble"),
    Family("laplace", "a posterior around the single network", "laplace", _nothing, SINGLE),
)
"""All families; those that start from others' networks come after these."""
