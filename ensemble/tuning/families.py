"""Families of methods that are compared: how each spends the training steps of some networks.

The networks are those of the configuration that is compared, and nothing else is tuned.
"""

from collections.abc import Mapping
from typing import Any

SINGLE = "single"
FAMILIES = (
    *(SINGLE, "deep_ensemble", "kfold_bagging", "mc_dropout", "batch_ensemble"),
    *("packed_ensemble", "snapshot_ensemble", "swag", "sghmc", "laplace"),
)
"""All families; those that start from others' networks come after these."""
STARTS = {"sghmc": "deep_ensemble", "laplace": SINGLE}
"""Families whose networks of the same round others start from."""
_WIDE_PRIOR = "*kernel=normal(8/sqrt(fan_in)), *=normal(1)"
"""The prior of `configs/mnist_sghmc.py`, with which a posterior predicts better than by He's."""


def settings_of(family: str, config: Mapping[str, Any], steps: int, times: int) -> dict[str, Any]:
    """Returns the keys with which a family spends the steps of some networks.

    Args:
        family: Name in `FAMILIES`.
        config: Configuration that is compared, flat.
        steps: Steps of one network.
        times: How many networks' steps there are.
    """
    if family == "laplace":  # It trains nothing.
        return {"method": family}
    several = {SINGLE: 1, "deep_ensemble": max(2, times), "kfold_bagging": max(4, times)}
    several["swag"] = times
    number = several.get(family, max(1, times // 2))  # The others bear twice the length.
    length = max(1, steps * times // number)
    keys: dict[str, Any] = {"method": "deep_ensemble" if family == SINGLE else family}
    if family == "sghmc":
        return {**keys, "num_chains": number, **_cyclical(config, length)}
    own: dict[str, dict[str, Any]] = {
        "kfold_bagging": {
            "kfold_bagging.folds": number,
            "early_stopping_epochs": config.get("early_stopping_epochs") or 40,
        },
        "mc_dropout": {"dropout": 0.1} if config.get("dropout") == 0 else {},
        "snapshot_ensemble": {"snapshot_ensemble.num_cycles": min(5, max(2, length // 20))},
        "swag": {"swag.num_iterates": min(20, max(2, length // 4))},
    }
    keys |= {"num_steps": length, "num_epochs": 0, "ensemble_size": number}
    return keys | own.get(family, {})


def _cyclical(config: Mapping[str, Any], steps: int) -> dict[str, Any]:
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
