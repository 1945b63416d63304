"""LOO of a model's observations."""

import numpy as np

from ensemble.report.model_results import _dims, _information_criteria
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


def test_axes_have_the_names_that_hold_wherever_a_variable_stands():
    draws = np.zeros((2, 9, 8, 3))
    vectors = SiteDraws(
        {}, {"y": draws[..., 0]}, {"y": draws}, {"y": draws[0, 0]}, {"y": ("r", None)}
    )
    assert _dims(vectors, "y") == ["r"]  # A log likelihood has no axis for the parts of a vector.
    of_rows = np.zeros((5, 8))  # Data with an axis that the distribution has not.
    many = SiteDraws(
        {}, {"y": np.zeros((2, 9, 5, 8))}, {"y": draws[..., 0]}, {"y": of_rows}, {"y": (None, "r")}
    )
    assert _dims(many, "y") == []
