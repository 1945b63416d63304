"""The keys of SGD: how long, in which batches, and how its members descend."""

from collections.abc import Mapping
from typing import Any

from ensemble import registry
from ensemble.keys import (
    BELOW_ONE,
    MAX_MEMBERS,
    NOT_NEGATIVE,
    POSITIVE,
    Block,
    Conflict,
    Key,
    named_in,
    one_of,
)
from ensemble.methods.common_keys import INIT_FROM, NAMED
from ensemble.methods.members.engine_keys import KEYS, conflicts


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    found = []
    num_epochs, num_steps = values["num_epochs"], values["num_steps"]
    if bool(num_epochs) == bool(num_steps):
        found.append(
            Conflict(
                ("num_epochs", "num_steps"),
                f"config.num_epochs={num_epochs} and config.num_steps={num_steps}: "
                "set exactly one of the two, the other to 0",
            )
        )
    start = values.get("init_from")
    if start in NAMED:
        line = f"config.init_from={start!r} is for samplers; it {INIT_FROM.rule.text}"
        found.append(Conflict(("init_from",), line))
    return found + conflicts(values)


BLOCK = Block(
    {
        "ensemble_size": Key(
            8,
            "members in all",
            POSITIVE,
            may_change=True,
            most=MAX_MEMBERS,
        ),
        "num_epochs": Key(
            None,
            "passes over the data; None or 0 where num_steps says how long",
            NOT_NEGATIVE,
            may_change=True,
            kind=int,
        ),
        "num_steps": Key(
            None,
            "batches to learn; None or 0 where num_epochs says how long",
            NOT_NEGATIVE,
            may_change=True,
            kind=int,
        ),
        **KEYS,
        "init_from": INIT_FROM,
        "dtype": Key(
            "float32",
            "what networks compute in; parameters, losses, scores and checkpoints are float32",
            one_of("float32", "bfloat16"),
        ),
        "optimizer": Key("sgd", "what turns gradients into steps", named_in(registry.OPTIMIZERS)),
        "learning_rate": Key(0.1, "the peak of the learning rate's schedule", POSITIVE),
        "momentum": Key(0.9, "momentum of sgd; adam and adamw keep optax's b1 and b2", BELOW_ONE),
        "weight_decay": Key(
            0.0, "decay of every parameter: L2 for sgd and adam, decoupled for adamw", NOT_NEGATIVE
        ),
        "gradient_clip": Key(
            0.0,
            "norm to which the gradients of a step are shortened; 0: they are not",
            NOT_NEGATIVE,
        ),
        "schedule": Key(
            "constant", "how the learning rate changes over time", named_in(registry.SCHEDULES)
        ),
        "warmup_fraction": Key(
            0.05, "share of the steps in which warmup_cosine rises to the peak", BELOW_ONE
        ),
    },
    _conflicts,
    leaves_out={"init_from": bool},
    instead={
        "num_chains": "config.ensemble_size says how many members",
        "sampler.num_samples": "config.num_epochs or num_steps says how long",
    },
)
