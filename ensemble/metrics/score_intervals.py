"""Intervals of a classifier's scores over examples: what another test set might have said.

The members stay as they are: an interval says how much a score would move with another test set of
this size, not with another training run. The calibration errors have none: chance alone raises
them, by more than they vary.
"""

import numpy as np
from numpy.typing import ArrayLike

from ensemble.metrics.abstention import error_interval
from ensemble.metrics.analytic_intervals import (
    Interval,
    bounded_interval,
    influence_interval,
    mean_interval,
    share_interval,
)
from ensemble.metrics.checks import Floats
from ensemble.metrics.mixture import ensemble_log_probs
from ensemble.metrics.scores import COVERAGE, Terms, mean_of_ties, terms

FEW_ERRORS = 5
"""With fewer wrong predictions the interval of a mean of surprisals cannot be told: it is made by
the few that are surprising, and those that were not drawn may be worse."""


def score_intervals(log_probs: ArrayLike, labels: ArrayLike) -> dict[str, Interval | None]:
    """95% intervals of an ensemble's `scores`, and of its mean confidence less its accuracy.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.

    Returns:
        (low, high) by name of score, and of `overconfidence`; None where it cannot be told: of the
        calibration errors, and of the NLL where fewer than `FEW_ERRORS` predictions are wrong.
    """
    one = terms(ensemble_log_probs(log_probs), labels)
    num_examples, num_right = len(one.hit), int(one.hit.sum())
    return {
        "accuracy": error_interval(num_right, num_examples),
        "nll": mean_interval(one.surprisal) if num_examples - num_right >= FEW_ERRORS else None,
        "brier": bounded_interval(one.squared_error, high=2.0),
        "ece": None,
        "adaptive_ece": None,
        "aurc": influence_interval(*_aurc(one)),
        "accuracy_at_80": _accuracy_at_coverage(one, COVERAGE),
        "overconfidence": bounded_interval(one.confidence - one.hit, low=-1.0),
    }


def balanced_accuracy_interval(hits: ArrayLike, labels: ArrayLike) -> Interval:
    """95% interval of the mean recall of the classes that have examples.

    Each class keeps its number of examples. Those of a class of few may all be right by chance, so
    half an error and half a hit are added to each before its variance is taken, and one further
    example counts as one of the rarest class.

    Args:
        hits: `[N]`, whether the predicted class is the label.
        labels: `[N]` integer labels.
    """
    hits, labels = np.asarray(hits, np.float64), np.asarray(labels)
    counts = np.bincount(labels)
    right = np.bincount(labels, weights=hits)[counts > 0]
    counts = counts[counts > 0]
    share = float(np.mean(right / counts))
    smooth = (right + 0.5) / (counts + 1)
    variance = float(np.mean(smooth * (1 - smooth) / counts)) / len(counts)
    return share_interval(share, variance, 1 / (counts.min() * len(counts)))


def _aurc(one: Terms) -> tuple[float, Floats]:
    """AURC is the mean of error * -log(share of more confident examples), which draws move too.

    Examples of equal confidence share what their places among each other would make of them.
    """
    error, by_rank = 1 - one.hit, 1 / np.arange(1, len(one.hit) + 1)
    log_share = mean_of_ties(one.confidence, np.cumsum(by_rank[::-1])[::-1])
    value = float(np.mean(error * log_share))
    shared_error = mean_of_ties(one.confidence, error)
    less_confident = np.cumsum((shared_error * by_rank)[::-1])[::-1]
    less_confident = mean_of_ties(one.confidence, less_confident)
    return value, error * log_share - value - less_confident + float(np.mean(error))


def _accuracy_at_coverage(one: Terms, coverage: float) -> Interval:
    """The threshold moves with the draw, and the accuracy there is that of its neighbours."""
    num = len(one.hit)
    covered = int(np.ceil(coverage * num - 1e-9))
    reach = max(5, int(np.sqrt(num)))
    shared_hit = mean_of_ties(one.confidence, one.hit)
    at_threshold = float(np.mean(shared_hit[max(0, covered - reach) : covered + reach]))
    share = float(np.mean(shared_hit[:covered]))
    is_covered = mean_of_ties(one.confidence, (np.arange(num) < covered).astype(np.float64))
    influence = is_covered * (one.hit - at_threshold) / coverage - (share - at_threshold)
    variance = float(np.mean(influence**2)) / max(num - 1, 1)
    return share_interval(share, variance, 1 / covered)
