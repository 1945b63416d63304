"""The keys of learning from an ensemble."""

from collections.abc import Mapping
from typing import Any

from ensemble.keys import NOT_NEGATIVE, Block, Conflict, Key, described
from ensemble.tasks.supervised_keys import DATA, TABLE, prior_conflicts, split_conflicts


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """A prior that cannot be read, and labels that a teacher has taken the place of."""
    found = prior_conflicts(values) + split_conflicts(values)
    if values.get("label_smoothing"):
        found.append(
            Conflict(
                ("label_smoothing",),
                f"config.label_smoothing={values['label_smoothing']} is of labels, and "
                "config.teacher takes their place; set it to 0",
            )
        )
    return found


BLOCK = Block(
    {
        **DATA,
        **TABLE,
        "teacher": Key(
            "",
            "workdir of the ensemble to learn from; empty: from the data's targets",
            described("must be a workdir, or empty"),
            may_change=True,  # A workdir can be moved; another ensemble is noticed.
        ),
        "num_blends": Key(
            0,
            "blends of two training examples, for each of them, that the teacher is asked of too",
            NOT_NEGATIVE,
            most=1000,
        ),
    },
    _conflicts,
)
