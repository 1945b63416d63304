"""Two ensembles of numbers side by side on the same test split."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation import recipe
from ensemble.evaluation.comparison import OVER, OVER_ROWS, check_comparable, members_of
from ensemble.evaluation.next_member import SMALL_GAIN, Subset
from ensemble.evaluation.numbers.known_rows import (
    is_known,
    known_rows,
    member_log_probs,
    nll_terms,
)
from ensemble.evaluation.strata import groups_of, strata_of
from ensemble.evaluation.subject import Subject
from ensemble.metrics import jackknife, regression
from ensemble.number_likelihood import NumberLikelihood
from ensemble.storage.predictions import StoredPredictions


class Compared(NamedTuple):
    """What one of the two says.

    Attributes:
        likelihood: of the run.
        test: predictions of the live members.
    """

    likelihood: NumberLikelihood
    test: StoredPredictions


def compare(subject: Subject, other: Subject) -> dict[str, Any]:
    """Compares two workdirs.

    Args:
        subject: the one that is evaluated.
        other: the one beside it.

    Returns:
        `workdir`, `method`, `likelihood`, `num_members` of the other, and what
        `compare_predictions` returns. Where targets are censored, scores are of the known ones,
        without coverage, and the NLL is of all. Where both have densities, or both probabilities
        of counts, `recipe_by_nll` is as `recipe.score_recipes` says of the NLL.

    Raises:
        UserError: they were not tested on the same examples.
    """
    check_comparable(subject, other)
    likelihoods = [cast(NumberLikelihood, one.likelihood) for one in (subject, other)]
    stored = [subject.test, other.test]
    ours, theirs = (
        Compared(one, known_rows(one, test)) for one, test in zip(likelihoods, stored, strict=True)
    )
    known, groups = is_known(subject.test.targets), groups_of(strata_of(subject.dataset))
    groups = None if groups is None else groups[known]
    members = members_of(subject, other)
    found = compare_predictions(ours, theirs, members, groups)
    if likelihoods[0].is_of_counts == likelihoods[1].is_of_counts:
        found["recipe_by_nll"] = recipe.score_recipes(
            "NLL",
            members,
            *(_surprisals(*pair) for pair in zip(likelihoods, stored, strict=True)),
            groups=groups_of(strata_of(subject.dataset)),
            margin=SMALL_GAIN,
        )
    if not known.all():
        for section in ("ensemble", "difference", "interval"):
            found[section] = {
                name: one
                for name, one in found[section].items()
                if not name.startswith(("nll", "coverage"))
            }
        nll = [{"nll": nll_terms(one, test)} for one, test in zip(likelihoods, stored, strict=True)]
        before, after = map(regression.means, nll)
        found["ensemble"] |= after
        found["difference"]["nll"] = after["nll"] - before["nll"]
        found["interval"] |= paired_intervals(*nll)
    return {
        "workdir": str(other.work.path),
        "method": other.config["method"],
        "likelihood": other.likelihood.name,
        "num_members": len(other.test.members),
        **found,
    }


def compare_predictions(
    ours: Compared,
    theirs: Compared,
    members: str = "members",
    groups: NDArray | None = None,
) -> dict[str, Any]:
    """Compares two ensembles by their predictions of the same examples.

    Args:
        ours: what one says.
        theirs: what the other says.
        members: what their members are called.
        groups: of the examples [N], where they are split by groups.

    Returns:
        `ensemble` scores of the other; `difference`: its score less ours; `interval`: its 95%
        interval over examples, None where there is none; `interval_over`, in words; `distance`:
        root mean square of the difference of the two means, in the targets' units; `overlap`: mean
        share of the narrower 90% interval that lies in the other one; `recipe` by the CRPS, as
        `recipe.score_recipes` says. An NLL of probabilities of counts has no difference from one
        of densities.
    """
    targets = ours.test.targets
    first, second = (one.likelihood.distribution(one.test.arrays) for one in (ours, theirs))
    terms = [one.terms(targets) for one in (first, second)]
    is_alike = ours.likelihood.is_of_counts == theirs.likelihood.is_of_counts
    names = [one for one in terms[0] if one in terms[1] and (is_alike or one[:3] != "nll")]
    gap = second.moments()[0] - first.moments()[0]
    ends = np.array([0.05, 0.95])
    (low, high), (their_low, their_high) = first.quantiles(ends), second.quantiles(ends)
    shared = np.maximum(np.minimum(high, their_high) - np.maximum(low, their_low), 0)
    narrower = np.minimum(high - low, their_high - their_low)
    before, after = map(regression.means, terms)
    return {
        "ensemble": after,
        "difference": {name: after[name] - before[name] for name in names},
        "interval": paired_intervals(*({name: one[name] for name in names} for one in terms)),
        "interval_over": OVER if groups is None else OVER_ROWS,
        "distance": float(np.sqrt(np.mean(gap**2))),
        "overlap": float(np.mean(shared / np.maximum(narrower, 1e-300))),
        "recipe": recipe.score_recipes(
            "CRPS", members, leave_one_out(ours), leave_one_out(theirs), groups=groups
        ),
    }


def paired_intervals(
    ours: Mapping[str, NDArray], theirs: Mapping[str, NDArray]
) -> dict[str, jackknife.Interval | None]:
    """95% intervals over examples of the differences of scores, theirs less ours.

    Args:
        ours: terms [N] by the name of the score, as `regression.means` takes them.
        theirs: the same of the other ensemble, on the same examples.

    Returns:
        By name of score; None where there is none. Those of coverage hold at least.
    """
    return {name: _paired_interval(name, one, theirs[name]) for name, one in ours.items()}


def _paired_interval(name: str, ours: NDArray, theirs: NDArray) -> jackknife.Interval | None:
    """95% interval over examples of the difference of a score, from its terms [N]."""
    if name.startswith("coverage"):
        return jackknife.share_difference_interval(ours, theirs)
    if name != "rmse":
        return jackknife.mean_difference_interval(ours, theirs)
    # To first order a root of a mean moves by what the mean does, over twice the root.
    roots = [np.sqrt(np.mean(one)) for one in (ours, theirs)]
    if not all(roots):
        return None
    pair = [one / (2 * root) + root / 2 for one, root in zip((ours, theirs), roots, strict=True)]
    return jackknife.mean_difference_interval(*pair)


def _surprisals(
    likelihood: NumberLikelihood, test: StoredPredictions
) -> jackknife.LeaveOneOut | None:
    """NLL terms of an ensemble, and of those without one of its members."""
    log_probs = member_log_probs(likelihood, test)

    def terms(subset: Subset) -> NDArray:
        return -regression.mixture_log_density(log_probs[list(subset)])

    return recipe.leave_one_out(terms, len(test.members))


def leave_one_out(predicted: Compared) -> jackknife.LeaveOneOut | None:
    """CRPS of an ensemble, and of those without one of its members.

    Args:
        predicted: what it says.
    """
    likelihood, test = predicted

    def crps(subset: Subset) -> NDArray:
        some = {name: one[list(subset)] for name, one in test.arrays.items()}
        return likelihood.distribution(some).crps(test.targets)

    return recipe.leave_one_out(crps, len(test.members))
