"""The families of methods that are compared: what each trains for some seconds.

A family is one entry of `FAMILIES`. Its networks are those of the configuration that is compared,
and nothing is tuned for it beside what its entry says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Settings = Mapping[str, Any]
"""Keys of a configuration, flat."""

PLAIN = "plain"
_WIDE_PRIOR = "*kernel=normal(8/sqrt(fan_in)), *=normal(1)"
"""The prior of `configs/mnist_sghmc.py`, with which a posterior predicts better than by He's."""


def _lasts(steps: int) -> Settings:
    return {"num_steps": steps, "num_epochs": 0}


def _no_keys(config: Settings, times: int) -> Settings:
    return {}


class Family(NamedTuple):
    """A method, with how it spends its seconds.

    Attributes:
        name: of the family.
        does: in some words.
        method: of the configuration.
        keys: on which the time of a step depends: of the configuration that is compared, flat, and
            how many times the seconds of one network there are.
        lasts: keys with which it takes so many steps.
        start: share of the seconds in which a plain network is trained that it starts from; 1: it
            is the plain network of the same seconds, around which nothing is trained.
        selects: whether it only weighs what the others have trained, and has all their seconds.
    """

    name: str
    does: str
    method: str = "sgd"
    keys: Callable[[Settings, int], Settings] = _no_keys
    lasts: Callable[[int], Settings] = _lasts
    start: float = 0.0
    selects: bool = False


def _several(config: Settings, times: int) -> Settings:
    """Says how many networks the seconds pay for at full length; two of half of it at least."""
    return {"ensemble_size": max(2, times)}


def _folds(config: Settings, times: int) -> Settings:
    """Gives each of as many members as the seconds pay for, four at least, a fold of its own."""
    return {"ensemble_size": max(4, times), "cross_fitted.folds": max(4, times)}


def _with_dropout(config: Settings, times: int) -> Settings:
    """The network's own dropout; a tenth where it has the key and no dropout."""
    key = f"{config['model']}.dropout"
    return {key: 0.1} if config.get(key) == 0 else {}


def _cycles(steps: int) -> Settings:
    return {**_lasts(steps), "snapshots.num_cycles": min(5, max(2, steps // 20))}


def _iterates(steps: int) -> Settings:
    return {**_lasts(steps), "swag.num_iterates": min(20, max(2, steps // 4))}


def _chain(config: Settings, times: int) -> Settings:
    """One chain, which descends like the networks if these do so by plain gradients."""
    found: dict[str, Any] = {"num_chains": 1, "sgmcmc.schedule": "cyclical"}
    if config["prior"] == "none":
        found["prior"] = _WIDE_PRIOR
    if config["optimizer"] != "sgd":
        found["learning_rate"] = 0.05
    return found


def _draws(steps: int) -> Settings:
    """A quarter of the steps without draws, then at most 20 draws."""
    draws = min(20, max(1, steps // 2))
    apart = max(1, (steps - steps // 4) // draws)
    return {
        "sgmcmc.num_burn_in": max(0, steps - draws * apart),
        "sgmcmc.num_samples": draws,
        "sgmcmc.steps_per_draw": apart,
    }


FAMILIES: tuple[Family, ...] = (
    Family(PLAIN, "one network"),
    Family("deep_ensemble", "several networks", keys=_several),
    Family("cross_fitted", "several that hold out rows of each other", "cross_fitted", _folds),
    Family("dropout", "one network that predicts with dropout", "mc_dropout", _with_dropout),
    Family("batch_ensemble", "estimators that share kernels", "batch_ensemble"),
    Family("packed", "estimators that divide a wider network", "packed"),
    Family("snapshots", "one network at the ends of cycles", "snapshots", lasts=_cycles),
    Family("swag", "draws around one network's last steps", "swag", lasts=_iterates),
    Family("sghmc", "draws of a posterior", "sghmc", _chain, _draws, start=0.5),
    Family("laplace", "a posterior around the plain network", "laplace", start=1.0),
    Family("greedy", "members of all of these, with weights", selects=True),
)
"""All families; those that need others' networks come behind these."""
