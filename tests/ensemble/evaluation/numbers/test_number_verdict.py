"""Sentences about numbers conclude only what their intervals support."""

import numpy as np
from run_parts import evaluated

from ensemble.evaluation.numbers import number_verdict as verdict
from ensemble.evaluation.sections import score_test
from ensemble.likelihoods.poisson import Poisson


def test_counts_that_are_predicted_rightly_are_not_called_too_cautious():
    """Intervals of counts hold their ends, so they hold more than 90%."""
    rng = np.random.default_rng(0)
    rates = np.full((1, 2000), 2.0)
    counts = rng.poisson(2.0, 2000).astype(float)
    test = score_test(evaluated(Poisson.of_data(np.arange(9.0), ()).view({"rate": rates}, counts)))
    assert test["ensemble"]["coverage_90"] > 0.92
    assert "too cautious" not in verdict.trust(test)
