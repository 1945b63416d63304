"""Two ensembles of numbers side by side on the same test split."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation.comparison import check_comparable
from ensemble.evaluation.subject import Subject
from ensemble.likelihood import NumberLikelihood
from ensemble.metrics import regression


def compare(subject: Subject, other: Subject) -> dict[str, Any]:
    """Compares two workdirs.

    Args:
        subject: the one that is evaluated.
        other: the one beside it.

    Returns:
        `workdir`, `method`, `likelihood`, `num_members` and `ensemble` scores of the other;
        `difference`: its score less the subject's; `interval`: paired 95% bootstrap interval of the
        difference, from the same resamples of the test split for both; `distance`: root mean square
        of the difference of the two means, in the targets' units; `overlap`: mean share of the
        narrower 90% interval that lies in the other one. An NLL of probabilities of counts has no
        difference from one of densities.

    Raises:
        UserError: they were not tested on the same examples.
    """
    check_comparable(subject, other)
    targets = subject.test.targets
    first, second = (cast(NumberLikelihood, one.likelihood) for one in (subject, other))
    ours = first.distribution(subject.test.arrays)
    theirs = second.distribution(other.test.arrays)
    terms = [one.terms(targets) for one in (ours, theirs)]
    is_alike = first.is_of_counts == second.is_of_counts
    names = [one for one in terms[0] if one in terms[1] and (is_alike or one[:3] != "nll")]
    before, after = map(regression.resampled_means, terms)

    def difference(counts: NDArray) -> dict[str, float]:
        one, another = before(counts), after(counts)
        return {name: another[name] - one[name] for name in names}

    gap = theirs.moments()[0] - ours.moments()[0]
    ends = np.array([0.05, 0.95])
    (low, high), (their_low, their_high) = ours.quantiles(ends), theirs.quantiles(ends)
    shared = np.maximum(np.minimum(high, their_high) - np.maximum(low, their_low), 0)
    narrower = np.minimum(high - low, their_high - their_low)
    return {
        "workdir": str(other.work.path),
        "method": other.config["method"],
        "likelihood": other.likelihood.name,
        "num_members": len(other.test.members),
        "ensemble": regression.means(terms[1]),
        "difference": difference(np.ones(len(targets), int)),
        "interval": metrics.intervals(difference, len(targets)),
        "distance": float(np.sqrt(np.mean(gap**2))),
        "overlap": float(np.mean(shared / np.maximum(narrower, 1e-300))),
    }
