"""The spherical score of predicted classes."""

import numpy as np

from ensemble.scoring.combine import Mean
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView


@score(of=ClassView, title="spherical score", combine=Mean(0, 1), better="higher")
def spherical(view):
    """p[label] over the Euclidean norm of p (Gneiting and Raftery 2007, example 2)."""
    probs = np.exp(view.log_probs)
    return probs[np.arange(len(probs)), view.labels] / np.linalg.norm(probs, axis=1)
