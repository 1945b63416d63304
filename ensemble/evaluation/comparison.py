"""Two ensembles side by side on the same test split.

What an interval is over decides what it says. Over examples: these very ensembles on another test
set. Over members and examples: two other ensembles of the same recipes; that is in `recipe.py`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.evaluation import recipe
from ensemble.evaluation.subject import Subject
from ensemble.metrics import jackknife
from ensemble.scoring.score import scores_of
from ensemble.scoring.view import View

OVER = "examples: these two ensembles, each score by itself"
"""What paired intervals are over."""
OVER_ROWS = f"{OVER}, as if rows of one group were independent"
"""The same where rows are split by groups."""


def compare(subject: Subject, other: Subject) -> dict[str, Any]:
    """Compares two workdirs.

    Args:
        subject: the one that is evaluated.
        other: the one beside it.

    Returns:
        `workdir`, `method`, `likelihood`, its `temperature` and `num_members` of the other, and
        what `compare_views` returns; `targets`, the same of each where there are several.

    Raises:
        UserError: they were not tested on the same examples.
    """
    if why := subject.view.why_not_beside(other.view):
        raise UserError(
            f"--compare={other.work.path} has {why}, as {subject.work.path}; both must be tested "
            "on the same data, and say the same of them"
        )
    check_comparable(subject, other)
    strata = None if subject.dataset is None else subject.dataset.strata("test")
    groups = None if strata is None else strata.groups
    members = members_of(subject, other)
    found = {
        "workdir": str(other.work.path),
        "method": other.config["method"],
        "likelihood": other.likelihood.name,
        "temperature": other.config.get("temperature", 1.0),
        "num_members": len(other.test.members),
    }
    parts = [
        {**found, **compare_views(*pair, members, groups)}
        for pair in zip(subject.view.parts, other.view.parts, strict=True)
    ]
    found |= compare_views(subject.view, other.view, members, groups)
    return {**found, "targets": parts} if parts else found


def compare_views(
    ours: View, theirs: View, members: str = "members", groups: NDArray | None = None
) -> dict[str, Any]:
    """Compares two ensembles by their predictions of the same examples.

    Args:
        ours: what one says.
        theirs: what the other says.
        members: what these are called.
        groups: of the examples [N], where they are split by groups.

    Returns:
        `scores` of the other, by name `value` and, of scores that both have, its `difference` from
        ours and the 95% `interval` of that over examples, None where there is none;
        `interval_over`, in words; what `View.beside` says; and by `View.recipes` what
        `recipe.score_recipes` says, of members without weights. Nats of a density have no
        difference from those of a probability.
    """
    before = {name: one for name, one in scores_of(ours).items() if one.of_members}
    after = {name: one for name, one in scores_of(theirs).items() if one.of_members}
    is_alike = ours.measure == theirs.measure
    both = [name for name in before if name in after and (is_alike or before[name].unit != "nats")]
    scores: dict[str, Any] = {name: {"value": one.value(theirs)} for name, one in after.items()}
    for name in both:
        with np.errstate(invalid="ignore"):  # Two infinite NLLs.
            change = float(np.subtract(scores[name]["value"], before[name].value(ours)))
        interval = before[name].difference(ours, theirs)
        scores[name] |= {"difference": change, "interval": interval}
    found = {
        "scores": scores,
        "interval_over": OVER if groups is None else OVER_ROWS,
        **ours.known.beside(theirs.known),
    }
    are_drawn = ours.weights is None and theirs.weights is None  # And not selected.
    for key, name in ours.recipes.items():
        if name in both and are_drawn:
            _, has_score = before[name].known_terms(ours)
            found[key] = recipe.score_recipes(
                before[name].title,
                members,
                leave_one_out(ours, name),
                leave_one_out(theirs, name),
                groups=None if groups is None else groups[has_score],
                margin=ours.small_gain if before[name].unit == "nats" else None,
            )
    return found


def leave_one_out(view: View, name: str) -> jackknife.LeaveOneOut | None:
    """Terms of a score of an ensemble, and of those without one of its members."""
    score = scores_of(view)[name]

    def terms(subset: tuple[int, ...]) -> NDArray:
        found, _ = score.known_terms(view.members(subset))
        return found if found.ndim == 1 else found[:, 0]

    return recipe.leave_one_out(terms, view.num_members)


def members_of(subject: Subject, other: Subject) -> str:
    """What the members of two workdirs are called."""
    are_chains = {one.report.get("posterior") is not None for one in (subject, other)}
    if len(are_chains) > 1:
        return "members or chains"
    return "chains" if are_chains.pop() else "members"


def check_comparable(subject: Subject, other: Subject) -> None:
    """Refuses workdirs that were not tested on the same examples.

    Raises:
        UserError: as said.
    """
    ours, theirs = subject.test, other.test
    prints = [one.description.get("test_fingerprint") for one in (subject, other)]
    if prints[0] != prints[1] or not np.array_equal(ours.targets, theirs.targets):
        raise UserError(
            f"--compare={other.work.path} was tested on other examples of "
            f"{other.description['name']} than {subject.work.path} of "
            f"{subject.description['name']}; give both the same splits, or, where splits are "
            "carved, the same config.seed"
        )
