"""Scores of how sure predicted classes are: calibration errors, and errors by confidence."""

import numpy as np

from ensemble.metrics.scores import (
    COVERAGE,
    accuracy_of_covered,
    adaptive_ece_of,
    aurc_influence,
    aurc_of,
    covered_influence,
    ece_of,
    errors_of_covered,
    num_covered,
)
from ensemble.scoring.combine import Mean, Order
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView


@score(of=ClassView, title="ECE", combine=Order(ece_of))
def ece(view):
    """15 bins of equal width (Guo et al. 2017); chance alone raises it, by more than it varies."""
    return view.ranked


@score(of=ClassView, title="adaptive ECE", combine=Order(adaptive_ece_of))
def adaptive_ece(view):
    """15 bins of equal mass (Nixon et al. 2019)."""
    return view.ranked


@score(of=ClassView, title="AURC", combine=Order(aurc_of, aurc_influence))
def aurc(view):
    """Area under the risk-coverage curve (Geifman et al. 2019)."""
    return view.ranked


@score(
    of=ClassView,
    title="accuracy at 80%",
    combine=Order(
        accuracy_of_covered,
        covered_influence,
        lambda number: 1 / num_covered(number, COVERAGE),
        errors_of_covered,
        over_groups="share",
    ),
    unit="share",
    better="higher",
)
def accuracy_at_80(view):
    """Accuracy of the 80% most confident examples (El-Yaniv and Wiener 2010)."""
    return view.ranked


@score(
    of=ClassView,
    title="overconfidence",
    combine=Mean(-1, 1, over_groups="signed"),
    unit="share",
    better="nearest",
    of_members=False,
)
def overconfidence(view):
    """Confidence less accuracy."""
    return np.subtract(view.confidence, view.hits)
