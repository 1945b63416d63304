"""The scores of an evaluation as a table, for a page, a terminal and a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ensemble.evaluation.questions.others import noun_of
from ensemble.evaluation.several_evaluator import MAX_SHOWN
from ensemble.report.simple_predictors import TITLES
from ensemble.scoring.score import named


class Column(NamedTuple):
    """A predictor beside the ensemble.

    Attributes:
        title: what it is.
        scores: by name, with their `value` and `interval`.
    """

    title: str
    scores: Mapping[str, Mapping[str, Any]]


def names_of(evaluation: Mapping[str, Any]) -> list[str]:
    """The scores that a member can have by itself: a table has a row of each."""
    return [name for name, one in evaluation["test"]["scores"].items() if "members" in one]


def columns_of(evaluation: Mapping[str, Any]) -> list[Column]:
    """The ensemble after calibration, and simpler predictors, as far as there are any."""
    calibrated, simple = evaluation.get("calibrated", {}), evaluation.get("simple", {})
    found = []
    if "scores" in calibrated:
        title = f"{calibrated['factor']} {calibrated['value']:.3g}"
        found.append(Column(f"with a {title}", calibrated["scores"]))
    for name, title in TITLES.items():
        if "scores" in simple.get(name, {}):
            found.append(Column(title, simple[name]["scores"]))
    return found


def title_of(name: str, evaluation: Mapping[str, Any]) -> str:
    """The title of a score; classes are called by their names."""
    score, (head, _, setting) = named(name), name.partition(":")
    names = evaluation.get("classes", {}).get("names", [])
    is_asked = name in evaluation.get("asked", {})  # By a class's name, and not its number.
    if setting.isdecimal() and not is_asked and int(setting) < len(names):
        return f"{named(head).title} ({names[int(setting)]})"
    return score.title


def shown(value: float | None, name: str) -> str:
    """A score as tables show it; a dash where there is none."""
    return named(name).shown(value)


def interval(pair: Sequence[float] | None, name: str) -> str:
    """`[low, high]` of a score; a dash where it is not known."""
    if pair is None or (pair[0] <= 0 and math.isinf(pair[1])):
        return "-"
    return f"[{shown(pair[0], name)}, {shown(pair[1], name)}]"


def score_table(evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the scores: the ensemble, its interval, members, simpler predictors.

    Of several targets, the first of these side by side, and the scores of all together.
    """
    test = evaluation["test"]
    if "targets" in test:
        return _several(evaluation, test["targets"][:MAX_SHOWN])
    simple = [one for one in columns_of(evaluation) if one.title in TITLES.values()]
    rows = [
        [
            title_of(name, evaluation),
            shown(test["scores"][name]["value"], name),
            interval(test["scores"][name]["interval"], name),
            shown(test["scores"][name]["mean"], name),
            *(shown(one.scores.get(name, {}).get("value"), name) for one in simple),
        ]
        for name in names_of(evaluation)
    ]
    over = "groups" if "over_groups" in test else "examples"
    noun = noun_of(evaluation)
    whole = "all chains" if noun == "chain" else "ensemble"
    heading = ["test", whole, f"95% over {over}", f"average {noun}"]
    return heading + [one.title for one in simple], rows


def _several(
    evaluation: Mapping[str, Any], targets: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    def cell(scores: Mapping[str, Mapping[str, Any]], name: str) -> str:
        one = scores[name]
        ends = interval(one["interval"], name)
        return shown(one["value"], name) + ("" if ends == "-" else f" {ends}")

    rows = [
        [title_of(name, evaluation), *(cell(one["scores"], name) for one in targets)]
        for name in names_of({"test": targets[0]})
    ]
    together = evaluation["test"]["scores"]
    for name in names_of(evaluation):
        if "over_targets" not in together[name]:
            rows.append([f"{title_of(name, evaluation)} of all", cell(together, name)])
            rows[-1] += [""] * (len(targets) - 1)
    return ["test", *(f"target {d}" for d in range(len(targets)))], rows
