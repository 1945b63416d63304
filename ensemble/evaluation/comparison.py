"""Two ensembles side by side on the same test split."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation.class_predictions import LabelledPredictions
from ensemble.evaluation.subject import Subject


def compare(subject: Subject, other: Subject) -> dict[str, Any]:
    """Compares two workdirs.

    Args:
        subject: the one that is evaluated.
        other: the one beside it.

    Returns:
        `workdir`, `method`, `temperature` of the likelihood, `num_members` and `ensemble` scores of
        the other; `difference`: its
        score less the subject's; `interval`: paired 95% bootstrap interval of the difference, from
        the same resamples of the test split for both; `agreement` and `total_variation` of the two
        predictions.

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
    ours, theirs = (metrics.ensemble_log_probs(one.log_probs) for one in tests)
    labels = subject.test.targets
    terms, other_terms = metrics.terms(ours, labels), metrics.terms(theirs, labels)

    def difference(counts: NDArray) -> dict[str, float]:
        before, after = terms.resampled(counts).scores(), other_terms.resampled(counts).scores()
        return {name: after[name] - before[name] for name in before}

    return {
        "workdir": str(other.work.path),
        "method": other.config["method"],
        "temperature": other.config.get("temperature", 1.0),
        "num_members": len(other.test.members),
        "ensemble": other_terms.scores(),
        "difference": difference(np.ones(len(labels), int)),
        "interval": metrics.intervals(difference, len(labels)),
        "agreement": metrics.agreement(theirs, ours),
        "total_variation": metrics.total_variation(theirs, ours),
    }


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
