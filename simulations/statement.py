"""The contract of simulations: a statement, the settings it is tried in, and one replication."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Outcome = Mapping[str, bool | None]
"""The outcome of one replication: by part of the statement (a score, a sentence) whether an
interval held what it is about, or a verdict was wrong; None where nothing was stated."""

Replicate = Callable[[np.random.Generator], Outcome]
Interval = tuple[float, float] | None

INTERVAL, VERDICT = "interval", "verdict"
LOW, HIGH = 0.92, 0.975
"""The range in which the found coverage of a 95% interval may lie."""
MOST_WRONG = 0.05


@dataclasses.dataclass(frozen=True)
class Statement:
    """What the program states, and how its truth is simulated.

    Attributes:
        name: short and unique, for example `next_member.gain`.
        claim: what is stated, in the words of a reader of the report.
        over: what would be drawn anew: "examples", "members", "members and examples", "chains",
            "calibration and test examples", "seeds".
        made_by: dotted names of the functions that make it. `make lint` wants every function that
            makes an interval to be named by a statement.
        settings: keyword arguments of `prepare` by title; at least six, the quickest first.
        prepare: makes the replication of a setting.
        kind: "interval", whose outcome is whether it held, or "verdict", whose outcome is whether
            it was wrong.
        level: what an interval promises.
        at_least: whether the promise is a bound, so that holding more often is no fault.
        num_replications: of a whole simulation.
    """

    name: str
    claim: str
    over: str
    made_by: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]
    prepare: Callable[..., Replicate]
    kind: str = INTERVAL
    level: float = 0.95
    at_least: bool = False
    num_replications: int = 2000

    def bounds(self) -> tuple[float, float]:
        """Between which shares the outcome may be found."""
        if self.kind == VERDICT:
            return 0.0, MOST_WRONG
        slack_low, slack_high = 0.95 - LOW, HIGH - 0.95
        return self.level - slack_low, 1.0 if self.at_least else min(self.level + slack_high, 1.0)


def replication(outcome: Callable[..., Outcome]) -> Callable[..., Replicate]:
    """Makes a `prepare` of a replication `(rng, **setting)` that needs no preparation."""
    return lambda **setting: functools.partial(outcome, **setting)


def holds(interval: Interval, truth: float, rounding: float = 0.0) -> bool | None:
    """Whether the truth lies within, but for rounding; None of no interval."""
    if interval is None:
        return None
    return bool(interval[0] - rounding <= truth <= interval[1] + rounding)
