"""The keys of what moves members: where they lie, which batches they see, what they minimise."""

from collections.abc import Mapping
from typing import Any

from ensemble.keys import (
    BELOW_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    TRUE_OR_FALSE,
    Conflict,
    Key,
    Rule,
    described,
    one_of,
)

NO_AUGMENTATION = "none"
"""The value of `augment.name` that names none."""

KEYS = {
    "member_devices": Key(
        1,
        "devices over which a member is split; 0: as few as suffice",
        NOT_NEGATIVE,
        may_change=True,
    ),
    "gradient_accumulation": Key(
        1,
        "parts in which the gradients of a batch are computed, for less memory",
        POSITIVE,
        may_change=True,
    ),
    "rematerialise": Key(
        False,
        "whether activations are computed again for the gradient, for less memory",
        TRUE_OR_FALSE,
        may_change=True,
    ),
    "batch_size": Key(128, "examples of a member in a step", POSITIVE),
    "batching": Key(
        "shared",
        "whether all members see one order of the examples, or each its own",
        one_of("shared", "independent"),
    ),
    "augment.shift": Key(0, "pixels by which images are shifted at most", NOT_NEGATIVE),
    "augment.flip": Key(False, "whether images are mirrored, left to right", TRUE_OR_FALSE),
    "augment.name": Key(
        NO_AUGMENTATION,
        "augmentation of your own, which sees what shift and flip have made of an example",
        described("must be none, or a registered or installed augmentation"),
    ),
    "class_weights": Key(
        "none",
        "how much each class counts in the loss",
        described("must be none, balanced, or one weight per class: 1,2,0.5"),
    ),
    "correct_class_weights": Key(
        True,
        "whether probabilities are corrected for class weights",
        TRUE_OR_FALSE,
    ),
    "label_smoothing": Key(0.0, "share of each target that is spread over all classes", BELOW_ONE),
    "beta_nll": Key(
        0.0,
        "beta-NLL: gradients are weighted by the variance to this power; 0: not",
        Rule(lambda value: 0 <= value <= 1, "must be from 0 to 1"),
    ),
    "early_stopping_epochs": Key(
        0,
        "epochs without a better validation NLL that end a member, at its best weights; 0: never",
        NOT_NEGATIVE,
    ),
}
"""A method has those that suit it in its block; the others stand at their defaults."""


def conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """Finds values of these keys that cannot stand together."""
    parts, batch_size = values["gradient_accumulation"], values["batch_size"]
    if parts <= batch_size:
        return []
    line = (
        f"config.gradient_accumulation={parts} must be at most config.batch_size={batch_size}; "
        "lower it"
    )
    return [Conflict(("gradient_accumulation", "batch_size"), line)]
