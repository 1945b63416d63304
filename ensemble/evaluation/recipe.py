"""Is another recipe better? Said over members and examples, of one score.

Two ensembles that were trained alike differ too. What a comparison says of these very ensembles is
therefore not what it says of the recipes, whose next ensembles will have other members.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation.next_member import FEWEST, SMALL_SHARE, Subset
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
