"""Findings about numbers conclude only what their intervals support."""

import numpy as np

from ensemble.evaluation.questions import calibration
from ensemble.likelihoods.poisson import Poisson
from ensemble.scoring.facts import facts_of
from ensemble.scoring.sections import score_split


def test_counts_that_are_predicted_rightly_are_not_called_too_cautious():
    """Intervals of counts hold their ends, so they hold more than 90%."""
    rng = np.random.default_rng(0)
    rates = np.full((1, 2000), 2.0)
    counts = rng.poisson(2.0, 2000).astype(float)
    view = Poisson.of_data(np.arange(9.0), ()).view({"rate": rates}, counts)
    test = score_split(view)
    assert test["scores"]["coverage_90"]["value"] > 0.92
    assert calibration.coverage(test, facts_of(view)).code == "coverage.counts"
