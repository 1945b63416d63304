"""LOO of a model's observations."""

import numpy as np
import pytest
import scipy.stats

from ensemble.numpyro_models.results import loo


def test_what_is_masked_is_no_observation_of_loo():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(2, 100, 1)) * 0.2
    log_likelihood = -0.5 * (rng.normal(size=6) - mu) ** 2
    masked = np.concatenate([log_likelihood, np.zeros((2, 100, 5))], axis=-1)

    def criteria(values):
        return loo({"y": values}, {"mu": mu[..., 0]})

    assert criteria(masked) == criteria(log_likelihood)
    assert criteria(masked)["y"]["num_bad_k"] == 0


@pytest.mark.parametrize(("num_draws", "good_k"), [(100, 0.5), (400, 1 - 1 / np.log10(400))])
def test_few_draws_bear_less_of_a_pareto_k(num_draws, good_k):
    """Weights of a Pareto shape of about 0.65 would be reliable for many draws alone."""
    shares = (np.arange(num_draws) + 0.5) / num_draws
    weights = scipy.stats.genpareto(0.7).ppf(shares) + 1e-3
    log_likelihood = -np.log(np.random.default_rng(0).permutation(weights)).reshape(2, -1, 1)
    mild = 0.1 * np.random.default_rng(2).normal(size=log_likelihood.shape)
    values = np.concatenate([log_likelihood, mild], axis=-1)
    draws = {"mu": np.random.default_rng(1).normal(size=values.shape[:2])}
    found = loo({"y": values}, draws)["y"]
    assert found["good_k"] == pytest.approx(good_k)
    assert found["num_bad_k"] == 1
