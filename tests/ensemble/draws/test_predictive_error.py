"""The Monte Carlo error of predictive densities, of draws whose law is known."""

import math

import numpy as np
import pytest

from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import error_of_draws, predictive_section

SD = 0.5


def log_normal(rng, num_chains=4, num_draws=400, num_examples=5):
    """Log densities that are normal, so that the log of their mean is known: SD^2 / 2."""
    return SD * rng.normal(size=(num_chains, num_draws, num_examples))


@pytest.mark.parametrize("alike", [False, True])
def test_errors_are_below_the_bound_and_the_interval_holds_the_nll(alike):
    below = []
    held = []
    ratios = []
    for seed in range(200):
        draws = log_normal(np.random.default_rng(seed))
        if alike:  # All examples move together: the hardest case of the bound.
            draws = np.repeat(draws[..., :1], 5, axis=-1)
        found = error_of_draws(draws, 1600.0)
        off = np.log(np.exp(draws).mean(axis=(0, 1))) - SD**2 / 2
        size = math.sqrt(np.mean(off**2))
        below.append(size < found.error)
        held.append(found.nll_interval[0] <= -(SD**2) / 2 <= found.nll_interval[1])
        ratios.append(found.error)
        assert found.nll == pytest.approx(-off.mean() - SD**2 / 2)
    assert np.mean(below) > 0.93
    assert 0.91 < np.mean(held) <= 1
    # The relative deviation of a log-normal, over the root of the number of draws.
    expected = math.sqrt(math.exp(SD**2) - 1) / math.sqrt(1600)
    assert np.mean(ratios) / expected == pytest.approx(2.13, rel=0.05)


def test_draws_that_depend_on_each_other_are_worth_less():
    draws = log_normal(np.random.default_rng(0), num_chains=1, num_draws=800)
    repeated = np.repeat(draws, 20, axis=1)
    once = error_of_draws(draws, 800.0)
    again = error_of_draws(repeated, 800.0)
    assert again.error == pytest.approx(once.error, rel=0.1)


def test_chains_in_modes_of_their_own_keep_the_error_large():
    draws = log_normal(np.random.default_rng(0), num_chains=8, num_draws=2000)
    draws[:4] += 1
    found = error_of_draws(draws, 16_000.0)
    assert found.error > 0.3
    assert found.nll_interval[1] - found.nll_interval[0] > 0.3
    assert error_of_draws(draws[:4], 8000.0).error < 0.03


@pytest.mark.parametrize(
    ("change", "ess"),
    [
        (lambda draws: draws, 100.0),
        (lambda draws: draws, math.nan),
        (lambda draws: draws[:, :7], 1000.0),
        (lambda draws: np.where(draws > 1, np.nan, draws), 1000.0),
        (lambda draws: np.where(np.arange(5) == 2, -np.inf, draws), 1000.0),
    ],
)
def test_what_cannot_be_told_is_not(change, ess):
    found = error_of_draws(change(log_normal(np.random.default_rng(0))), ess)
    assert set(found) == {None}


def test_a_density_that_is_zero_in_some_draws_is_not_infinite():
    draws = log_normal(np.random.default_rng(0))
    draws[0, ::2, 3] = -np.inf
    assert math.isfinite(error_of_draws(draws, 1000.0).nll)


def test_the_section_is_of_predictions_alone():
    rng = np.random.default_rng(0)
    draws = log_normal(rng, num_examples=3)
    drifting = draws[..., 2] + np.linspace(0, 3, draws.shape[1])
    scalars = {
        "log_density": rng.normal(size=(4, 400)) + np.arange(4)[:, None],  # Of no account here.
        "log_prob_00": draws[..., 0],
        "log_prob_01": np.zeros((4, 400)),  # It says nothing.
        "log_prob_02": drifting,
    }
    kept = np.arange(400)
    found = predictive_section(scalars, diagnostics.summarise(scalars), kept)
    assert found["num_examples"] == 3
    assert found["rhat_max"] == diagnostics.summarise({"": drifting}).rhat_max
    assert found["error"] is None  # So little are the drifting draws worth.
    calm = {**scalars, "log_prob_02": draws[..., 2]}
    told = predictive_section(calm, diagnostics.summarise(calm), kept)
    assert told["nll_interval"][0] < told["nll"] < told["nll_interval"][1]
    only = {"log_density": scalars["log_density"]}
    assert predictive_section(only, diagnostics.summarise(only), kept) is None


def test_the_error_is_of_the_draws_that_predict():
    draws = log_normal(np.random.default_rng(0), num_examples=3)
    scalars = {f"log_prob_{i:02d}": draws[..., i] for i in range(3)}
    found = diagnostics.summarise(scalars)
    every, few = (predictive_section(scalars, found, np.arange(s - 1, 400, s)) for s in (1, 8))
    expected = error_of_draws(draws[:, 7::8], float(draws[:, 7::8, 0].size))
    assert (few["num_draws"], few["nll"]) == (50, pytest.approx(expected.nll))
    assert few["error"] > 1.5 * every["error"]
