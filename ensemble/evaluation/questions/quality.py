"""How good is it, and better than what?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ensemble import metrics
from ensemble.metrics.grouped import MIN_GROUPS
from ensemble.scoring.finding import Finding
from ensemble.scoring.sections import values_in

FEW_EXAMPLES = 30
"""With fewer test examples nothing is concluded of calibration, or of simpler predictors."""
NOTABLE = 0.01
"""Difference in accuracy, or in nats, of which is said how many examples would show it."""


def has_few_groups(test: Mapping[str, Any]) -> bool:
    """Whether rows are split by so few groups that nothing can be told of others."""
    return bool(test.get("num_groups", MIN_GROUPS) < MIN_GROUPS)


def quality(test: Mapping[str, Any], score: str, num_members: int, noun: str = "member") -> Finding:
    """The headline score.

    Args:
        test: as `score_split` returns it.
        score: by name; of several targets `nll`, that of all.
        num_members: M.
        noun: what a member is called.
    """
    one = test["scores"][score]
    numbers = {
        "value": one["value"],
        "interval": one["interval"],
        "num_rows": test["num_rows"],
        "num_members": num_members,
        "noun": noun,
    }
    if one["interval"] is None and has_few_groups(test):
        few = {"num_groups": test["num_groups"], "column": test["over_groups"]}
        return Finding(f"quality.{score}_of_few_groups", numbers=numbers | few)
    if one["interval"] is None:
        return Finding(f"quality.{score}_without_interval", numbers=numbers)
    return Finding(f"quality.{score}", numbers=numbers)


def impossible(facts: Mapping[str, Any], nll: float) -> Finding:
    """Whether labels have probability 0, or targets density 0."""
    if math.isfinite(nll):
        return Finding("impossible.none", numbers={"nll": nll})
    if "num_impossible" in facts:
        number = facts["num_impossible"]
        return Finding("impossible.labels", numbers={"number": number}, tone="warning")
    return Finding("impossible.targets", tone="warning")


def gain(test: Mapping[str, Any], score: str, num_members: int, noun: str = "member") -> Finding:
    """What the ensemble brings over its average member.

    Args:
        test: as `score_split` returns it.
        score: by name: `accuracy`, or an error.
        num_members: M.
        noun: what a member is called.
    """
    if num_members == 1:
        return Finding("gain.one_member", numbers={"noun": noun})
    ours, average = values_in(test), values_in(test, "mean")
    numbers = {"nll": ours.get("nll"), "nll_of_member": average.get("nll"), "noun": noun}
    change = ours[score] - average[score]
    if score == "accuracy":
        which = "more_accurate" if change > 0 else "less_accurate" if change < 0 else "as_accurate"
        return Finding(f"gain.{which}", numbers=numbers | {"points": abs(100 * change)})
    which = "lower" if change < 0 else "higher"
    if score != "nll":
        numbers["share"] = abs(change / average[score])
    return Finding(f"gain.{which}_{score}", numbers=numbers)


def majority(test: Mapping[str, Any], classes: Mapping[str, Any]) -> Finding:
    """Whether it is right more often than an answer that is always the most frequent class.

    Args:
        test: as `score_split` returns it.
        classes: as `classes.score_classes` returns it.
    """
    one = classes["majority"]
    if not classes["are_unequal"]:
        return Finding("majority.equal_classes", numbers={"share": one["share"]})
    numbers = {"name": one["name"], "share": one["share"]}
    if "over_groups" in test:  # Rows of one group may be alike, and are counted one by one here.
        return Finding("majority.groups", numbers=numbers | {"column": test["over_groups"]})
    rarer, more = one["wins"]
    if more < 0.5:
        return Finding("majority.better", numbers=numbers, tone="warning")
    if rarer > 0.5:
        return Finding("majority.worse", numbers=numbers, tone="good")
    needed = metrics.num_to_see(NOTABLE, one["excess_interval"], test["num_rows"])
    needed_for = {"needed": needed, "points": 100 * NOTABLE}
    return Finding("majority.inconclusive", numbers=numbers | needed_for)


def balance(test: Mapping[str, Any], classes: Mapping[str, Any]) -> Finding:
    """The mean recall of the classes, where these are unequal."""
    numbers = {"value": classes["balanced_accuracy"], "interval": classes["interval"]}
    if not classes["are_unequal"]:
        return Finding("balance.equal_classes", numbers=numbers)
    if "over_groups" in test:
        return Finding("balance.groups", numbers=numbers | {"interval": None})
    return Finding("balance.accuracy", numbers=numbers)


def baseline(test: Mapping[str, Any], simple: Mapping[str, Any], score: str) -> Finding:
    """Whether it is better than linear regression, a constant and, over time, a past value.

    Args:
        test: as `score_split` returns it.
        simple: as `score_simple` returns it.
        score: that is compared, `rmse` or `pinball`.
    """
    found = {name: one for name, one in simple.items() if "scores" in one}
    if not found:
        return Finding("baseline.no_data")
    values = {name: values_in(one)[score] for name, one in found.items()}
    numbers = {"score": score, "linear": values.get("least_squares"), "mean": values["constant"]}
    numbers |= {name: values[name] for name in ("last_value", "last_season") if name in values}
    if test["num_rows"] < FEW_EXAMPLES:
        return Finding("baseline.few_examples", numbers=numbers | {"num_rows": test["num_rows"]})
    intervals = {name: one["excess_interval"][score] for name, one in found.items()}
    told = {name: one for name, one in intervals.items() if one is not None}
    worse = {name: one for name, one in told.items() if one[1] < 0}
    if worse:
        name, (low, high) = next(iter(worse.items()))
        numbers |= {"name": name, "interval": (-high, -low)}
        return Finding("baseline.worse", numbers=numbers, tone="warning")
    open_ones = {name: one for name, one in told.items() if one[0] <= 0}
    if open_ones:
        name, interval = min(open_ones.items(), key=lambda one: one[1])
        numbers |= {"name": name, "interval": interval, "num_rows": test["num_rows"]}
        return Finding("baseline.inconclusive", numbers=numbers)
    if len(told) == len(found):
        name, interval = min(told.items(), key=lambda one: one[1])
        numbers |= {"name": name, "interval": interval}
        return Finding("baseline.better", numbers=numbers, tone="good")
    if has_few_groups(test):
        few = {"num_groups": test["num_groups"], "column": test["over_groups"]}
        return Finding("baseline.few_groups", numbers=numbers | few)
    return Finding("baseline.heavy_tail", numbers=numbers)
