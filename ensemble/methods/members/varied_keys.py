"""The keys of members that vary: those of SGD, and the ranges of what members draw of their own."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from ensemble.keys import Block, Conflict, Key, Rule
from ensemble.methods.members import sgd_keys

LEARNING_RATE, WEIGHT_DECAY = "varied.learning_rate_factor", "varied.weight_decay_factor"
SMOOTHING, DROPOUT = "varied.label_smoothing", "varied.dropout"


def parse_range(text: str) -> tuple[float, float]:
    """Reads two numbers, such as `0.3,3`.

    Raises:
        ValueError: it is something else.
    """
    low, high = map(float, text.split(","))
    return low, high


def _range_within(least: float, below: float, text: str, may_be_empty: bool = False) -> Rule:
    def holds(value: str) -> bool:
        try:
            bounds = parse_range(value)
        except ValueError:
            return may_be_empty and not value
        ascending = all(a <= b for a, b in itertools.pairwise((least, *bounds)))
        return ascending and bounds[1] < below and math.isfinite(bounds[1])

    return Rule(holds, text)


_FACTORS = _range_within(
    1e-6, math.inf, "must be two positive numbers, as in 0.3,3, the lower one first"
)
_SHARE = "two numbers from 0 to below 1, as in 0,0.2, the lower one first"


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    found = list(sgd_keys.BLOCK.conflicts(values))
    factors = values[WEIGHT_DECAY]
    if factors != BLOCK.keys[WEIGHT_DECAY].default and not values["weight_decay"]:
        line = (
            f"config.{WEIGHT_DECAY}={factors!r} are factors of config.weight_decay=0; set that to "
            "what is usual, such as 1e-4"
        )
        found.append(Conflict((WEIGHT_DECAY, "weight_decay"), line))
    return found


BLOCK = Block(
    {
        **{name: key for name, key in sgd_keys.BLOCK.keys.items() if name != "label_smoothing"},
        LEARNING_RATE: Key(
            "0.3,3",
            "range of members' factors of learning_rate; evenly in logarithms",
            _FACTORS,
        ),
        WEIGHT_DECAY: Key(
            "0.1,10",
            "range of members' factors of weight_decay; evenly in logarithms",
            _FACTORS,
        ),
        SMOOTHING: Key(
            "0,0",
            "range of the share of each target that a member spreads over all classes",
            _range_within(0.0, 1.0, f"must be {_SHARE}"),
        ),
        DROPOUT: Key(
            "",
            "range of the rates of dropout; empty: as the network has it",
            _range_within(0.0, 1.0, f"must be empty, or {_SHARE}", may_be_empty=True),
        ),
    },
    _conflicts,
    leaves_out=sgd_keys.BLOCK.leaves_out,
    instead={**sgd_keys.BLOCK.instead, "label_smoothing": f"config.{SMOOTHING} says its range"},
)
