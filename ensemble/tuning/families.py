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
        lasts: keys with which each network takes so many steps.
        start: share of the seconds in which plain networks are trained that its chains start from;
            1: it is the plain network of the same seconds, around which nothing is trained.
        selects: whether it only weighs what the others have trained, and has all their seconds.
    """

    name: str
    does: str
    method: str = "deep_ensemble"
    keys: Callable[[Settings, int], Settings] = _no_keys
    lasts: Callable[[int], Settings] = _lasts
    start: float = 0.0
    selects: bool = False


def _several(config: Settings, times: int) -> Settings:
    """Says how many networks the seconds pay for at full length; two of half of it at least."""
    return {"ensemble_size": max(2, times)}


def _full_length(config: Settings, times: int) -> Settings:
    """Says how many networks the seconds pay for at full length."""
    return {"ensemble_size": times} if times > 1 else {}


def _longer(config: Settings, times: int) -> Settings:
    """Says how many networks the seconds pay for at twice the length, which these methods bear."""
    return _full_length(config, times // 2)


def _folds(config: Settings, times: int) -> Settings:
    """Gives each of as many members as the seconds pay for, four at least, a fold of its own."""
    number = max(4, times)
    patience = config.get("early_stopping_epochs") or 40
    folds = {"kfold_bagging.folds": number, "early_stopping_epochs": patience}
    return {"ensemble_size": number, **folds}


def steps_after_trials(steps: int, per_epoch: int, num_trials: int) -> int:
    """Steps of cross-fitted networks after their own trials, if they take so many in all.

    Each trial but the last, which goes on, takes a quarter of these, and at most 20 epochs.

    Args:
        steps: in all.
        per_epoch: steps of an epoch.
        num_trials: three, or two where the data allow no linear start.
    """
    most = steps // per_epoch
    if most < 4:  # Too short for trials.
        return steps
    epochs = range(most, 0, -1)
    lasting = (one for one in epochs if one + (num_trials - 1) * min(20, one // 4) <= most)
    return next(lasting) * per_epoch


def _with_dropout(config: Settings, times: int) -> Settings:
    """The network's own dropout; a tenth where it has the key and no dropout."""
    return {**_longer(config, times), **({"dropout": 0.1} if config.get("dropout") == 0 else {})}


def _cycles(steps: int) -> Settings:
    return {**_lasts(steps), "snapshot_ensemble.num_cycles": min(5, max(2, steps // 20))}


def _iterates(steps: int) -> Settings:
    return {**_lasts(steps), "swag.num_iterates": min(20, max(2, steps // 4))}


def _chain(config: Settings, times: int) -> Settings:
    """One chain of c, or several of 2c; they descend like networks that use plain gradients."""
    found: dict[str, Any] = {"num_chains": max(1, times // 2), "sgmcmc.schedule": "cyclical"}
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
    Family("cross_fitted", "several that hold out rows of each other", "kfold_bagging", _folds),
    Family("dropout", "networks that predict with dropout", "mc_dropout", _with_dropout),
    Family("batch_ensemble", "estimators that share kernels", "batch_ensemble", _longer),
    Family("packed", "estimators that divide a wider network", "packed_ensemble", _longer),
    Family("snapshots", "networks at the ends of cycles", "snapshot_ensemble", _longer, _cycles),
    Family("swag", "draws around networks' last steps", "swag", _full_length, _iterates),
    Family("sghmc", "draws of a posterior", "sghmc", _chain, _draws, start=0.5),
    Family("laplace", "a posterior around the plain network", "laplace", start=1.0),
    Family("greedy", "members of all of these, with weights", selects=True),
)
"""All families; those that need others' networks come behind these."""
