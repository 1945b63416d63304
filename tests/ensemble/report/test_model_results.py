"""LOO of a model's observations."""

import numpy as np

from ensemble.report.model_results import _information_criteria
from ensemble.task import SiteDraws


def test_what_is_masked_is_no_observation_of_loo():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(2, 100, 1)) * 0.2
    log_likelihood = -0.5 * (rng.normal(size=6) - mu) ** 2
    masked = np.concatenate([log_likelihood, np.zeros((2, 100, 5))], axis=-1)

    def criteria(values):
        return _information_criteria(SiteDraws({"mu": mu[..., 0]}, {"y": values}, {}, {}, {}))

    assert criteria(masked) == criteria(log_likelihood)
    assert criteria(masked)["y"]["num_bad_k"] == 0
