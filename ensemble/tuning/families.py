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


def _nothing(config: Settings, steps: int, number: int) -> Settings:
    return {}


class Family(NamedTuple):
    """A method, with how it spends its steps.

    Attributes:
        name: Name of the family.
        method: Value of `config.method`.
        number: Called with how many networks' steps there are; returns the number of networks or
            chains that divide them; 0: it trains none.
        keys: Called with the configuration that is compared, flat, the steps of each of the
            networks, and their number; returns further keys.
        starts_from: Family whose networks of the same round it starts from; empty: none.
    """

    name: str
    method: str
    number: Callable[[int], int]
    keys: Callable[[Settings, int, int], Settings] = _nothing
    starts_from: str = ""

    def settings(self, config: Settings, steps: int, times: int) -> Settings:
        """The keys with which it spends the steps of some networks.

        Args:
            config: Configuration that is compared, flat.
            steps: Steps of one network.
            times: How many networks' steps there are.
        """
        if not (number := self.number(times)):
            return {"method": self.method}
        length = max(1, steps * times // number)
        duration = {"num_steps": length, "num_epochs": 0, "ensemble_size": number}
        if self.method == "sghmc":
            duration = {"num_chains": number}
        return {"method": self.method, **duration, **self.keys(config, length, number)}


def _longer(times: int) -> int:
    """Networks of twice the length, which these methods bear."""
    return max(1, times // 2)


def _folds(config: Settings, steps: int, number: int) -> Settings:
    """Each member holds out a fold of its own."""
    patience = config.get("early_stopping_epochs") or 40
    return {"kfold_bagging.folds": number, "early_stopping_epochs": patience}


def _dropout(config: Settings, steps: int, number: int) -> Settings:
    """The network's own dropout; a tenth if it has the key and no dropout."""
    return {"dropout": 0.1} if config.get("dropout") == 0 else {}


def _cycles(config: Settings, steps: int, number: int) -> Settings:
    return {"snapshot_ensemble.num_cycles": min(5, max(2, steps // 20))}


def _iterates(config: Settings, steps: int, number: int) -> Settings:
    return {"swag.num_iterates": min(20, max(2, steps // 4))}


def _cyclical(config: Settings, steps: int, number: int) -> Settings:
    """One cycle, which descends like networks by plain gradients."""
    draws = min(20, max(1, steps // 2))
    apart = max(1, (steps - steps // 4) // draws)
    keys: dict[str, Any] = {
        "sgmcmc.schedule": "cyclical",
        "sgmcmc.num_burn_in": max(0, steps - draws * apart),
        "sgmcmc.num_samples": draws,
        "sgmcmc.steps_per_draw": apart,
    }
    if config["prior"] == "none":
        keys["prior"] = _WIDE_PRIOR
    if config["optimizer"] != "sgd":
        keys["learning_rate"] = 0.05
    return keys


FAMILIES: tuple[Family, ...] = (
    Family(SINGLE, "deep_ensemble", lambda times: 1),
    Family("deep_ensemble", "deep_ensemble", lambda times: max(2, times)),
    Family("kfold_bagging", "kfold_bagging", lambda times: max(4, times), _folds),
    Family("mc_dropout", "mc_dropout", _longer, _dropout),
    Family("batch_ensemble", "batch_ensemble", _longer),
    Family("packed_ensemble", "packed_ensemble", _longer),
    Family("snapshot_ensemble", "snapshot_ensemble", _longer, _cycles),
    Family("swag", "swag", lambda times: times, _iterates),
    Family("sghmc", "sghmc", _longer, _cyclical, "deep_ensemble"),
    Family("laplace", "laplace", lambda times: 0, starts_from=SINGLE),
)
"""All families; those that start from others' networks come after these."""
