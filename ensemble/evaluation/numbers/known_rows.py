"""What is known of the targets of a split: their values, or that they are censored.

A target that was measured with an error is scored as it was measured: the error's variance is added
to the predictions'. Of a censored target only a bound is known. The NLL has it, and so has the PIT,
by the estimator of Kaplan and Meier; all other scores are of the rows whose target is known.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.likelihood import Arrays
from ensemble.likelihoods import parametric
from ensemble.metrics import censoring, regression
from ensemble.number_likelihood import NumberLikelihood
from ensemble.storage.predictions import StoredPredictions
from ensemble.target_rows import CENSORED, ERROR, annotation, values


def is_known(targets: NDArray) -> NDArray:
    """Whether each target is known, and not only bounded, bool [N]."""
    censored = annotation(targets, CENSORED)
    return np.ones(len(targets), bool) if censored is None else ~np.asarray(censored)


def known_rows(likelihood: NumberLikelihood, stored: StoredPredictions) -> StoredPredictions:
    """The predictions of the rows whose target is known, as it was measured, and their targets.

    Args:
        likelihood: of the run.
        stored: predictions of N rows, and their targets [N], as `ensemble.target_rows` has them.

    Returns:
        Predictions of K rows, and numbers [K] as targets.
    """
    if stored.targets.dtype.names is None:
        return stored
    arrays, known = as_measured(likelihood, stored), is_known(stored.targets)
    kept = {name: one[:, known] for name, one in arrays.items()}
    return StoredPredictions(kept, values(stored.targets)[known], stored.members)


def member_log_probs(likelihood: Any, stored: StoredPredictions) -> NDArray:
    """Log densities [M, N] of what is known of the targets: log survival where censored."""
    return parametric.row_log_probs(likelihood, stored.arrays, stored.targets)


def as_measured(likelihood: Any, stored: StoredPredictions) -> Arrays:
    """Predictions [M, N, ...] of what was measured, where targets say with which errors."""
    return parametric.with_errors(likelihood, stored.arrays, stored.targets)


def nll_terms(likelihood: NumberLikelihood, stored: StoredPredictions) -> NDArray:
    """NLL [N] of the mixture, of what is known of each target, nats."""
    return -regression.mixture_log_density(member_log_probs(likelihood, stored))


def pit_of(likelihood: NumberLikelihood, stored: StoredPredictions) -> NDArray:
    """CDF [N] of what was measured, at the targets or, where these are censored, their bounds."""
    arrays = as_measured(likelihood, stored)
    return likelihood.distribution(arrays).pit(values(stored.targets))


def describe_annotations(stored: StoredPredictions) -> dict[str, Any]:
    """How many targets are `num_censored`, and `num_measured` with an error; empty: none are."""
    error = annotation(stored.targets, ERROR)
    num_censored = int((~is_known(stored.targets)).sum())
    found = {"num_censored": num_censored} if num_censored else {}
    return found if error is None else {**found, "num_measured": int((error > 0).sum())}


def score_censored(likelihood: NumberLikelihood, test: StoredPredictions) -> dict[str, Any]:
    """What is known of the calibration where some targets are censored.

    Args:
        likelihood: of the run.
        test: predictions of N rows, of which some are censored.

    Returns:
        `pit`, as `metrics.censoring.pit_uniformity` says; `coverage`, shares of all targets that
        central intervals hold, by the names of the scores, of that estimate: None where it does not
        reach so far; `bounds`, between which the share must lie wherever the censored targets are;
        `interval`, which holds the true share with a probability of 95% at least (Clopper and
        Pearson 1934 for either bound).
    """
    pit, known = pit_of(likelihood, test), is_known(test.targets)
    found: dict[str, Any] = {"pit": censoring.pit_uniformity(pit, ~known)}
    parts: Mapping[str, dict[str, Any]] = {"coverage": {}, "bounds": {}, "interval": {}}
    curve = censoring.kaplan_meier(pit, ~known)
    for level in regression.LEVELS:
        name, low, high = f"coverage_{100 * level:.0f}", (1 - level) / 2, (1 + level) / 2
        num_held = int(((pit >= low) & (pit <= high) & known).sum())
        num_perhaps = num_held + int(((pit <= high) & ~known).sum())
        ends = [metrics.error_interval(one, len(pit)) for one in (num_held, num_perhaps)]
        parts["coverage"][name] = curve.share(low, high)
        parts["bounds"][name] = (num_held / len(pit), num_perhaps / len(pit))
        parts["interval"][name] = (ends[0][0], ends[1][1])
    return {**found, **parts}
