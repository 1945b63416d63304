"""The keys of random walks, whose steps are those of every chain."""

from collections.abc import Mapping
from typing import Any

from ensemble.keys import POSITIVE, Block, Conflict, Key, Rule, one_of
from ensemble.methods.common_keys import INSTEAD_OF_MEMBERS, NUM_CHAINS, STOP_AT

SHAPES = ("scalar", "diagonal", "dense")
"""What the warm-up can make of the moves."""
_MIN_CHAINS_TO_STOP = 16


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    found, method = [], values["method"]
    num_chains, log_every_steps = values["num_chains"], values["log_every_steps"]
    stops = values["stop_at.rhat"] or values["stop_at.ess"]
    if stops and num_chains < _MIN_CHAINS_TO_STOP:
        found.append(
            Conflict(
                ("stop_at.rhat", "stop_at.ess", "num_chains"),
                f"config.stop_at needs {_MIN_CHAINS_TO_STOP} chains with config.method="
                f"{method!r}, whose errors are the spread between chains; there are {num_chains}",
            )
        )
    if log_every_steps % 2:
        found.append(
            Conflict(
                ("log_every_steps",),
                f"config.log_every_steps={log_every_steps} must be even with config.method="
                f"{method!r}, for steps are taken in pairs; use {log_every_steps + 1}",
            )
        )
    return found


_DURATION = "config.rwm.num_samples says how long"
_RWM = {
    "scale": Key(1.0, "standard deviation of the moves when the warm-up starts", POSITIVE),
    "shape": Key(
        "scalar", "form of the covariance that the warm-up gives the moves", one_of(*SHAPES)
    ),
    "num_warmup": Key(
        2400,
        "steps that tune the moves; 0 tunes nothing",
        Rule(lambda value: value >= 0 and value % 2 == 0, "must be even and not negative"),
    ),
    "num_samples": Key(
        10_000,
        "steps of each chain that count",
        Rule(lambda value: value > 0 and value % 2 == 0, "must be even, from 2"),
        may_change=True,
        most=2**32 - 1,  # Random walks have a rule of their own.
    ),
}

BLOCK = Block(
    {
        "num_chains": NUM_CHAINS,
        **{f"rwm.{name}": key for name, key in _RWM.items()},
        **STOP_AT,
    },
    _conflicts,
    instead={
        **INSTEAD_OF_MEMBERS,
        "num_epochs": _DURATION,
        "num_steps": _DURATION,
        "sampler.num_samples": _DURATION,
        "dataset": "config.density says what is sampled",
        "model": "config.density says what is sampled",
    },
)
