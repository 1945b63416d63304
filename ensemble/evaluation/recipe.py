"""Is another recipe better? Said over members and examples, of one score.

Two ensembles that were trained alike differ too. What a comparison says of these very ensembles is
therefore not what it says of the recipes, whose next ensembles will have other members.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import shown
from ensemble.evaluation.next_member import FEWEST, SMALL_SHARE, Subset, plain
from ensemble.metrics import jackknife
from ensemble.metrics.grouped import MIN_GROUPS, group_terms


def leave_one_out(
    terms: Callable[[Subset], NDArray], num_members: int
) -> jackknife.LeaveOneOut | None:
    """Terms of a score, of an ensemble and of those without one of its members.

    Args:
        terms: [N] of the mixture of some members; their mean is the score.
        num_members: M.

    Returns:
        The same; None of too few members.
    """
    everyone = tuple(range(num_members))
    if num_members < FEWEST:
        return None
    less = [terms(everyone[:k] + everyone[k + 1 :]) for k in everyone]
    return jackknife.LeaveOneOut(terms(everyone), np.stack(less))


def score_recipes(
    score: str,
    members: str,
    ours: jackknife.LeaveOneOut | None,
    theirs: jackknife.LeaveOneOut | None,
    *,
    groups: NDArray | None = None,
    margin: float | None = None,
) -> dict[str, Any]:
    """What can be said of two recipes by one score, of which lower is better.

    Args:
        score: its title.
        members: what members are called.
        ours: of the ensemble that is evaluated.
        theirs: of the one beside it.
        groups: of the test rows [N], which are then drawn anew in place of these; None: none.
        margin: a difference that is of no account; None: 1% of the score.

    Returns:
        `score` and `over`, what is drawn anew; the `reason` why nothing can be said, or
        `difference`, theirs less ours, of ensembles of as many members on average; `interval`, 95%;
        `error`, standard, and its parts, as `jackknife.TwoWay` says; `margin`, a
        difference that is of no account; `could_see`, a difference that would have been seen with a
        probability of 80%; `needed` for the margin, as `jackknife.Needed` says.
    """
    drawn = "examples" if groups is None else "groups"
    section: dict[str, Any] = {"score": score, "over": f"{members} and {drawn}"}
    if ours is None or theirs is None:
        return {**section, "reason": f"it takes {FEWEST} {members} of each to tell"}
    if len(ours.whole) < 2:
        return {**section, "reason": "there is one test example"}
    if not all(np.isfinite(one).all() for pair in (ours, theirs) for one in pair):
        return {**section, "reason": f"with fewer {members} the {score} is infinite"}
    if groups is not None:
        number = len(np.unique(groups))
        if number < MIN_GROUPS:
            return {**section, "reason": f"it takes {MIN_GROUPS} groups of rows, not {number}"}
        ours, theirs = (
            jackknife.LeaveOneOut(*(group_terms(one, groups) for one in pair))
            for pair in (ours, theirs)
        )
    found = jackknife.two_way(ours, theirs)
    if margin is None:
        margin = SMALL_SHARE * float(np.mean(ours.whole))
    return {
        **section,
        **found._asdict(),
        "interval": jackknife.two_way_interval(found),
        "error": found.error,
        "margin": margin,
        "could_see": jackknife.could_see(found),
        "needed": jackknife.needed(found, margin, FEWEST)._asdict() if margin > 0 else None,
    }


def sentence(comparison: Mapping[str, Any]) -> str:
    """Whether the recipe of another workdir is better.

    Args:
        comparison: as `Evaluator.compare` returns it.
    """
    if comparison.get("is_start"):
        return _start_sentence(comparison)
    section, name = comparison["recipe"], shown(comparison["workdir"])
    score = section["score"]
    if "reason" in section:
        return (
            f"Whether the recipe of {name} is better cannot be told: {section['reason']}. "
            f"{_these(comparison)}"
        ).strip()
    low, high = section["interval"]
    numbers = (
        f"{score} {_signed(section['difference'])} [{_signed(low)}, {_signed(high)}] over "
        f"{section['over']}"
    )
    if high < 0:
        return f"The recipe of {name} is better: {numbers}."
    if low > 0:
        return f"The recipe of {name} is worse: {numbers}."
    margin = f"{plain(section['margin'])}, {SMALL_SHARE:.0%} of the {score}"
    if high < section["margin"]:
        return f"The recipe of {name} is no worse than by {margin}: {numbers}."
    return (
        f"Whether the recipe of {name} is better cannot be told: {numbers}. A difference of "
        f"{plain(section['could_see'])} would have been seen in 80% of cases. {_these(comparison)}"
    ).strip()


def _start_sentence(comparison: Mapping[str, Any]) -> str:
    """Whether a posterior is better than the ensemble that it starts from, by the NLL."""
    section, name = deciding(comparison), shown(comparison["workdir"])
    than = f"than the ensemble that it starts from, {name}"
    if "reason" in section:
        return f"Whether the posterior is better {than}, cannot be told: {section['reason']}."
    low, high = (-one for one in reversed(section["interval"]))
    numbers = (
        f"NLL {_signed(-section['difference'])} [{_signed(low)}, {_signed(high)}] over "
        f"{section['over']}"
    )
    if high < 0:
        return f"The posterior is better {than}: {numbers}."
    if low > 0:
        return f"The posterior is worse {than}: {numbers}. Use the ensemble."
    return (
        f"Whether the posterior is better {than}, cannot be told: {numbers}. A difference of "
        f"{plain(section['could_see'])} would have been seen in 80% of cases."
    )


def deciding(comparison: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the sentence on a comparison is decided on, as `score_recipes` returns it.

    Args:
        comparison: as `Evaluator.compare` returns it.
    """
    found: Mapping[str, Any] = comparison.get("recipe", {})
    return comparison.get("recipe_by_nll", found) if comparison.get("is_start") else found


def power(comparison: Mapping[str, Any]) -> str:
    """What it would take to see the margin; empty where that is not known.

    Args:
        comparison: as `Evaluator.compare` returns it.
    """
    section = deciding(comparison)
    found = section.get("needed")
    if not found:
        return ""
    if found["times"] <= 1:
        return (
            "There are enough examples and members to see a difference of "
            f"{plain(section['margin'])} in 80% of cases."
        )
    ways = []
    if found["examples"]:
        of_groups = section["over"].endswith("groups")
        what = "groups of test examples" if of_groups else "test examples"
        ways.append(f"{found['examples']:,} {what}")
    if found["members"]:
        ways.append(f"{found['members']:,} members of each")
    ways.append(f"{plain(found['times'])} times as many of both")
    return (
        f"To see a difference of {plain(section['margin'])} in 80% of cases takes about "
        f"{' or '.join(ways)}."
    )


def _these(comparison: Mapping[str, Any]) -> str:
    """What is known of the two ensembles themselves; empty of rows in groups, which are alike."""
    section = comparison["recipe"]
    if section["over"].endswith("groups"):
        return ""
    key = section["score"].lower()
    interval = comparison["interval"].get(key)
    if interval is None:
        return "Nor can it be told of these two ensembles."
    low, high = interval
    what = "has the lower" if high < 0 else "has the higher" if low > 0 else "may have either"
    numbers = f"{_signed(comparison['difference'][key])} [{_signed(low)}, {_signed(high)}]"
    return f"This very ensemble {what} {section['score']}: {numbers} over examples."


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{plain(value)}"
