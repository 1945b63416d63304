"""Two ensembles side by side on the same test split.

What an interval is over decides what it says. Over examples: these very ensembles on another test
set. Over members and examples: two other ensembles of the same recipes; that is in `recipe.py`.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation import recipe
from ensemble.evaluation.class_predictions import LabelledPredictions
from ensemble.evaluation.next_member import Mixtures, Subset
from ensemble.evaluation.strata import groups_of, strata_of
from ensemble.evaluation.subject import Subject
from ensemble.metrics import jackknife
from ensemble.metrics.jackknife import Interval
from ensemble.metrics.scores import COVERAGE, mean_of_ties

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
        `workdir`, `method`, `temperature` of the likelihood, `num_members` of the other, and what
        `compare_predictions` returns.

    Raises:
        UserError: they were not tested on the same examples.
    """
    tests = [LabelledPredictions.of(one.test) for one in (subject, other)]
    shapes = [one.log_probs.shape[1:] for one in tests]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"--compare={other.work.path} has {shapes[1][0]} test examples of {shapes[1][1]} "
            f"classes, {subject.work.path} has {shapes[0][0]} of {shapes[0][1]}; both must be "
            "tested on the same data"
        )
    check_comparable(subject, other)
    ours, theirs = (one.log_probs for one in tests)
    return {
        "workdir": str(other.work.path),
        "method": other.config["method"],
        "temperature": other.config.get("temperature", 1.0),
        "num_members": len(other.test.members),
        **compare_predictions(
            ours,
            theirs,
            subject.test.targets,
            members_of(subject, other),
            groups_of(strata_of(subject.dataset)),
        ),
    }


def compare_predictions(
    ours: NDArray,
    theirs: NDArray,
    labels: NDArray,
    members: str = "members",
    groups: NDArray | None = None,
) -> dict[str, Any]:
    """Compares two ensembles by their predictions of the same examples.

    Args:
        ours: log-probabilities [M, N, C] of the members of one.
        theirs: of the other, [M', N, C].
        labels: [N].
        members: what these are called.
        groups: of the examples [N], where they are split by groups.

    Returns:
        `ensemble` scores of the other; `difference`: its score less ours; `interval`: its 95%
        interval over examples, None where there is none; `interval_over`, in words; `agreement` and
        `total_variation` of the two predictions; `recipe` by the NLL, as `recipe.score_recipes`
        says.
    """
    before, after = (metrics.ensemble_log_probs(one) for one in (ours, theirs))
    parts = (leave_one_out(one, labels) for one in (ours, theirs))
    terms, other_terms = metrics.terms(before, labels), metrics.terms(after, labels)
    scores, other_scores = terms.scores(), other_terms.scores()
    with np.errstate(invalid="ignore"):  # Two infinite NLLs.
        difference = {name: other_scores[name] - scores[name] for name in scores}
    return {
        "ensemble": other_scores,
        "difference": difference,
        "interval": {**dict.fromkeys(difference), **paired_intervals(terms, other_terms)},
        "interval_over": OVER if groups is None else OVER_ROWS,
        "agreement": metrics.agreement(after, before),
        "total_variation": metrics.total_variation(after, before),
        "recipe": recipe.score_recipes("NLL", members, *parts, groups=groups),
    }


def paired_intervals(ours: metrics.Terms, theirs: metrics.Terms) -> dict[str, Interval | None]:
    """95% intervals over examples of the differences of scores, theirs less ours.

    Args:
        ours: terms of one ensemble.
        theirs: of the other, on the same examples.

    Returns:
        By name of score. There are none of the calibration errors, which chance raises, and of the
        AURC, on which a few of the surest errors decide. Those of shares hold at least.
    """
    both = (ours, theirs)
    surprisals = [_by_example(one, one.surprisal) for one in both]
    squares = [_by_example(one, one.squared_error) for one in both]
    hits = [_by_example(one, one.hit) for one in both]
    # Of the surest, the share of right ones differs by that of all examples that are wrong there.
    number = len(ours.hit)
    covered = math.ceil(COVERAGE * number - 1e-9)
    surest = (np.arange(number) < covered).astype(np.float64)
    wrong = [_by_example(one, mean_of_ties(one.confidence, surest) * (1 - one.hit)) for one in both]
    low, high = jackknife.share_difference_interval(*reversed(wrong))
    return {
        "accuracy": jackknife.share_difference_interval(*hits),
        "nll": jackknife.mean_difference_interval(*surprisals),
        "brier": jackknife.mean_difference_interval(*squares),
        "accuracy_at_80": (low * number / covered, high * number / covered),
    }


def _by_example(terms: metrics.Terms, values: NDArray) -> NDArray:
    """Values in the order of confidence, [N], in the order of the examples."""
    found = np.empty_like(values)
    found[terms.order] = values
    return found


def leave_one_out(log_probs: NDArray, labels: NDArray) -> jackknife.LeaveOneOut | None:
    """Surprisals of an ensemble, and of those without one of its members.

    Args:
        log_probs: [M, N, C] of the members.
        labels: [N].
    """
    rows = np.arange(len(labels))
    mixtures = Mixtures(log_probs[:, rows, labels][..., None])

    def surprisals(subset: Subset) -> NDArray:
        return -mixtures.mean(subset)[:, 0]

    return recipe.leave_one_out(surprisals, len(log_probs))


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
