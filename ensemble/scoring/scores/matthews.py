"""The correlation of predicted classes with the labels."""

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.checks import Floats
from ensemble.scoring.combine import Groups
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView


class Correlation:
    """The correlation of labels and predicted classes, of any number (Gorodkin 2004, R_K).

    Terms are [N, 2]: labels, and predicted classes. It has no interval: none was simulated.
    """

    over_groups: ClassVar[Groups] = "signed"

    def value(self, terms: Floats, counts: NDArray | None = None) -> float:
        if not len(terms):
            return math.nan
        weights = np.ones(len(terms)) if counts is None else counts
        labels, predicted = terms.astype(int).T
        number = int(terms.max()) + 1
        of_labels, of_predicted = (
            np.bincount(one, weights, number) / weights.sum() for one in (labels, predicted)
        )
        agreement = weights[labels == predicted].sum() / weights.sum()
        covariance = agreement - of_labels @ of_predicted
        variances = (1 - of_labels @ of_labels) * (1 - of_predicted @ of_predicted)
        return float(covariance / math.sqrt(variances)) if variances > 0 else 0.0

    def _untold(self, *_: object) -> None:
        return None

    interval = difference = change = ratio = _untold


@score(of=ClassView, title="Matthews correlation", combine=Correlation(), better="higher")
def matthews(view):
    """1 where all are right, 0 by chance or where one class is all that is said or seen."""
    return np.stack([view.labels, view.log_probs.argmax(axis=-1)], axis=1).astype(np.float64)
