"""LOO of a model's observations."""

import arviz
import numpy as np
import pytest
import scipy.stats
from words_of_models import found_of_model

from ensemble.numpyro_models.results import SiteDraws, _dims, _information_criteria
from ensemble.report.text import format_table


def test_what_is_masked_is_no_observation_of_loo():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(2, 100, 1)) * 0.2
    log_likelihood = -0.5 * (rng.normal(size=6) - mu) ** 2
    masked = np.concatenate([log_likelihood, np.zeros((2, 100, 5))], axis=-1)

    def criteria(values):
        return _information_criteria(SiteDraws({"mu": mu[..., 0]}, {"y": values}, {}, {}, {}))

    assert criteria(masked) == criteria(log_likelihood)
    assert criteria(masked)["y"]["num_bad_k"] == 0


@pytest.mark.parametrize(("num_draws", "good_k"), [(100, 0.5), (400, 1 - 1 / np.log10(400))])
def test_few_draws_bear_less_of_a_pareto_k(num_draws, good_k):
    """Weights of a known Pareto shape between the two limits are reliable for many draws alone."""
    shares = (np.arange(num_draws) + 0.5) / num_draws
    weights = scipy.stats.genpareto(0.7).ppf(shares) + 1e-3
    log_likelihood = -np.log(np.random.default_rng(0).permutation(weights)).reshape(2, -1, 1)
    mild = 0.1 * np.random.default_rng(2).normal(size=log_likelihood.shape)
    values = np.concatenate([log_likelihood, mild], axis=-1)
    draws = {"mu": np.random.default_rng(1).normal(size=values.shape[:2])}
    found = _information_criteria(SiteDraws(draws, {"y": values}, {}, {}, {}))["y"]
    assert found["good_k"] == pytest.approx(good_k)
    k = arviz.psislw(np.log(weights))[1]
    assert good_k < k < 0.7
    assert found["num_bad_k"] == 1


def test_no_cells_of_the_table_of_variables_run_together():
    names = ("mean", "mcse", "sd", "q05", "q95", "rhat", "ess_bulk", "ess_tail")
    values = (-0.0314512, 0.00094, 0.0188171, -0.0628812, -0.00096618, 1.001, 396, 400)
    site = dict(zip(names, values, strict=True))
    report = {"sites": {"w": site}, "num_values": 1, "information_criteria": {}}
    table = format_table({"method": "nuts", **report})
    assert "no scores" not in table
    assert table.splitlines()[-1].split()[1:] == [
        "-0.031451", "0.00094", "0.018817", "-0.062881", "-0.00096618", "1.001", "396", "400",
    ]  # fmt: skip


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


def test_chains_of_a_model_that_agree_have_nothing_said_against_them():
    assert found_of_model({"rhat_max": 1.001}) == []
