"""The keys of sgld and sghmc, whose steps see a batch of the data."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ensemble.keys import (
    MAX_MEMBERS,
    MAX_STEPS,
    NOT_NEGATIVE,
    POSITIVE,
    Block,
    Conflict,
    Key,
    one_of,
)
from ensemble.methods.common_keys import (
    INIT_FROM,
    INSTEAD_OF_MEMBERS,
    MAP,
    NUM_CHAINS,
    NUM_PREDICTIVE_DRAWS,
    PATHFINDER,
    PRIOR,
    UNIFORM,
    is_file,
)
from ensemble.methods.mcmc import sampler_keys
from ensemble.methods.members import engine_keys, sgd_keys

SCHEDULES = ("constant", "polynomial", "cyclical")
PRECONDITIONERS = ("none", "rmsprop")
_MIN_ADAPTING = 20


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    found = sampler_keys.likelihood_conflicts(values)
    own = {name.removeprefix("sgmcmc."): one for name, one in values.items()}
    num_chains, num_burn_in, start = own["num_chains"], own["num_burn_in"], own["init_from"]
    num_cycles, schedule = own["num_cycles"], own["schedule"]
    num_steps = num_cycles * (num_burn_in + own["num_samples"] * own["steps_per_draw"])
    if num_chains > MAX_MEMBERS:
        line = f"config.num_chains={num_chains} must be at most {MAX_MEMBERS}"
        found.append(Conflict(("num_chains",), line))
    if num_steps > MAX_STEPS:
        line = f"config.sgmcmc has {num_steps} steps in all, which must be at most {MAX_STEPS}"
        names = ("num_burn_in", "num_samples", "steps_per_draw", "num_cycles")
        keys = tuple(f"sgmcmc.{name}" for name in names)
        found.append(Conflict(keys, f"{line}; lower sgmcmc.num_samples"))
    if num_cycles > 1 and schedule != "cyclical":
        line = (
            f"config.sgmcmc.num_cycles={num_cycles} is for config.sgmcmc.schedule='cyclical', and "
            f"this run has {schedule!r}; set it to 1, or choose 'cyclical'"
        )
        found.append(Conflict(("sgmcmc.num_cycles", "sgmcmc.schedule"), line))
    if own["preconditioner"] != "none" and num_burn_in < _MIN_ADAPTING:
        line = (
            f"config.sgmcmc.num_burn_in={num_burn_in} must be at least {_MIN_ADAPTING} to adapt "
            f"config.sgmcmc.preconditioner={own['preconditioner']!r}; raise it, or use 'none'"
        )
        found.append(Conflict(("sgmcmc.num_burn_in", "sgmcmc.preconditioner"), line))
    if start in (MAP, UNIFORM, PATHFINDER):
        line = (
            f"config.init_from={start!r} is for samplers that see all the data at once; use "
            f"{PRIOR!r}, a workdir of trained members, or a file of weights"
        )
        found.append(Conflict(("init_from",), line))
    return found


_DURATION = "config.sgmcmc.num_samples says how long"
_SGMCMC = {
    "schedule": Key("constant", "how the learning rate changes in a cycle", one_of(*SCHEDULES)),
    "num_cycles": Key(1, "how often the cyclical schedule begins again", POSITIVE, may_change=True),
    "num_burn_in": Key(1000, "steps at the start of a cycle that leave no draws", NOT_NEGATIVE),
    "num_samples": Key(100, "draws of each chain in a cycle", POSITIVE, may_change=True),
    "steps_per_draw": Key(100, "steps from one draw to the next", POSITIVE),
    "preconditioner": Key(
        "none", "what scales the steps of each parameter", one_of(*PRECONDITIONERS)
    ),
}

_KEYS = {
    "num_chains": NUM_CHAINS,
    "num_predictive_draws": NUM_PREDICTIVE_DRAWS,
    "init_from": INIT_FROM,
    "temperature": sampler_keys.BLOCK.keys["temperature"],
    **{
        name: engine_keys.KEYS[name]
        for name in ("batch_size", "batching", "augment.shift", "augment.flip", "augment.name")
    },
    "learning_rate": sgd_keys.BLOCK.keys["learning_rate"],
    **{f"sgmcmc.{name}": key for name, key in _SGMCMC.items()},
}
_INSTEAD = {
    **INSTEAD_OF_MEMBERS,
    "num_epochs": _DURATION,
    "num_steps": _DURATION,
    "sampler.num_samples": _DURATION,
    "schedule": "config.sgmcmc.schedule says how the learning rate changes",
    "weight_decay": "config.prior says how small parameters are",
    "beta_nll": "a posterior has one likelihood, whose gradients nothing weights",
    "dtype": "log densities of all the data differ by less than half precision rounds them",
}

_RULES = {"init_from": f"{INIT_FROM.rule.text}, which is {PRIOR}"}
SGLD = Block(
    _KEYS,
    _conflicts,
    _INSTEAD,
    _RULES,
    empty={"init_from": PRIOR},
    leaves_out={"init_from": is_file},
)
SGHMC = dataclasses.replace(SGLD, keys={**_KEYS, "momentum": sgd_keys.BLOCK.keys["momentum"]})
