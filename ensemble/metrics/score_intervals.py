"""The interval of a classifier's balanced accuracy, and how few errors tell nothing of its NLL."""

import numpy as np
from numpy.typing import ArrayLike

from ensemble.metrics.analytic_intervals import Interval, share_interval

FEW_ERRORS = 5
"""With fewer wrong predictions the interval of a mean of surprisals is not known: it is made by
the few that are surprising, and those that were not drawn may be worse."""


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
