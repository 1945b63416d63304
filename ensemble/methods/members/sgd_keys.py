"""The keys of SGD: how long, in which batches, and how its members descend."""

from collections.abc import Mapping
from typing import Any

from ensemble.keys import (
    BELOW_ONE,
    MAX_MEMBERS,
    NOT_NEGATIVE,
    POSITIVE,
    TRUE_OR_FALSE,
    Block,
    Conflict,
    Key,
    Rule,
    described,
    one_of,
)

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "warmup_cosine")


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
    parts, batch_size = values["gradient_accumulation"], values["batch_size"]
    if parts > batch_size:
        found.append(
            Conflict(
                ("gradient_accumulation", "batch_size"),
                f"config.gradient_accumulation={parts} must be at most "
                f"config.batch_size={batch_size}; lower it",
            )
        )
    return found


BLOCK = Block(
    {
        "ensemble_size": Key(
            8,
            "members in all, whatever the number of devices",
            POSITIVE,
            may_change=True,
            most=MAX_MEMBERS,
        ),
        "member_devices": Key(
            1,
            "devices over which a member is split that is larger than one; 0: as few as suffice",
            NOT_NEGATIVE,
            may_change=True,
        ),
        "gradient_accumulation": Key(
            1,
            "parts of a batch whose gradients are computed one after another, for less memory",
            POSITIVE,
            may_change=True,
        ),
        "rematerialise": Key(
            False,
            "whether activations are computed again for the gradient, for less memory",
            TRUE_OR_FALSE,
            may_change=True,
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
        "batch_size": Key(128, "examples that one member sees in a step", POSITIVE),
        "batching": Key(
            "shared",
            "whether all members see one order of the examples, or each its own",
            one_of("shared", "independent"),
        ),
        "augment.shift": Key(0, "pixels by which images are shifted at most", NOT_NEGATIVE),
        "augment.flip": Key(False, "whether images are mirrored, left to right", TRUE_OR_FALSE),
        "class_weights": Key(
            "none",
            "how much each class counts in the loss",
            described("must be none, balanced, or one weight per class: 1,2,0.5"),
        ),
        "label_smoothing": Key(
            0.0, "share of each target that is spread over all classes", BELOW_ONE
        ),
        "beta_nll": Key(
            0.0,
            "beta-NLL: gradients are weighted by the variance to this power; 0: not",
            Rule(lambda value: 0 <= value <= 1, "must be from 0 to 1"),
        ),
        "pretrained": Key(
            "",
            "weights that members start from, all but the head: npz, safetensors or a workdir",
            described("must be the path of an npz or safetensors file, or a workdir; or empty"),
        ),
        "dtype": Key(
            "float32",
            "what networks compute in; parameters, losses, scores and checkpoints are float32",
            one_of("float32", "bfloat16"),
        ),
        "optimizer": Key("sgd", "what turns gradients into steps", one_of(*OPTIMIZERS)),
        "learning_rate": Key(0.1, "the peak of the learning rate's schedule", POSITIVE),
        "momentum": Key(0.9, "momentum of sgd; adam and adamw keep optax's b1 and b2", BELOW_ONE),
        "weight_decay": Key(
            0.0, "decay of every parameter: L2 for sgd and adam, decoupled for adamw", NOT_NEGATIVE
        ),
        "schedule": Key("constant", "how the learning rate changes over time", one_of(*SCHEDULES)),
        "warmup_fraction": Key(
            0.05, "share of the steps in which warmup_cosine rises to the peak", BELOW_ONE
        ),
        "early_stopping_epochs": Key(
            0,
            "epochs without a better validation NLL that end a member, which keeps the weights of "
            "its best epoch; 0: never",
            NOT_NEGATIVE,
        ),
    },
    _conflicts,
    instead={
        "num_chains": "config.ensemble_size says how many members",
        "sampler.num_samples": "config.num_epochs or num_steps says how long",
        "rwm.num_samples": "config.num_epochs or num_steps says how long",
    },
)
