"""Scores of predicted classes, one example at a time."""

import numpy as np

from ensemble.metrics.score_intervals import FEW_ERRORS
from ensemble.metrics.scores import squared_errors, surprisals
from ensemble.scoring.combine import Mean, Share
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView


@score(
    of=ClassView,
    title="accuracy",
    combine=Share(),
    unit="share",
    better="higher",
    under_shift="difference",
)
def accuracy(view):
    """Whether the most probable class is the label; the lowest index wins a tie."""
    return view.hits


@score(
    of=ClassView,
    title="NLL",
    combine=Mean(tail="any", fewest=FEW_ERRORS, over_groups="signed"),
    unit="nats",
)
def nll(view):
    """Mean of -log p[label] (Good 1952)."""
    # Few errors do not tell how surprising others are.
    return np.stack([surprisals(view.log_probs, view.labels), 1 - view.hits], axis=1)


@score(of=ClassView, title="Brier score", combine=Mean(0, 2))
def brier(view):
    """Sum over classes of (p - onehot)^2 (Brier 1950)."""
    return squared_errors(view.log_probs, view.labels)
