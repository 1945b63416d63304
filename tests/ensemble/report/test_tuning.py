"""Why a warm-up has failed, in a line with what to do."""

import re

import numpy as np
import pytest

from ensemble.report.tuning import too_long, untuned


@pytest.mark.parametrize(
    ("posterior", "says"),
    [
        ({"converged": True, "accept": 1.0}, None),
        ({"accept": 0.9}, None),
        ({"accept": 1.0, "num_warmup": 0}, None),
        ({"accept": 1.0}, "100.0% of the draws are accepted, where the warm-up aims at 80%"),
        ({"step_size": [0.1, None]}, "no step size for chains 3, which stay"),
        ({"step_size": [0.0, 0.1]}, "no step size for chains 1, which stay"),
        ({"energy_variance": 1e-9}, "varies by 1e-09 nats.2 per step .* sizes from 1e-06 are far"),
        ({"energy_variance": 4e-4}, None),
    ],
)
def test_a_warmup_that_failed_is_said_in_a_line(posterior, says):
    given = {"converged": False, "accept": 0.8, "num_warmup": 50, "step_size": [1e-6, 1e-6]}
    report = {
        "posterior": given | posterior,
        "live_members": [1, 3],
        "config": {"sampler": {"target_acceptance": 0.8}},
    }
    if says is None:
        assert untuned(report) == []
    else:
        (line,) = untuned(report)
        assert re.search(f"did not converge, because .*{says}.* raise config.sampler.num_wa", line)


def test_chains_without_a_warmup_have_none_that_failed():
    assert untuned({"posterior": {"converged": False, "draw_temperature": 1.0}}) == []


LARGE = "The steps are too long for the posterior: the energy varies by 82 nats^2 per step"


@pytest.mark.parametrize(
    ("posterior", "begins", "remedy"),
    [
        ({"energy_variance": 0.65}, None, ""),
        ({"energy_variance": 82.0, "num_warmup": 500}, None, ""),
        ({"energy_variance": 82.0}, LARGE, "step_size=0.05 to 0.016, at which .* be 0.1 if it fe"),
        (
            {"energy_variance": 82.0, "divergences": 30},
            f"{LARGE} and parameter and 30 draws diverged, and with config.sampler.num_warmup=0 ",
            "step_size=0.05 to 0.016,",
        ),
        ({"energy_variance": np.inf}, "", "step_size=0.05 to 0.025, half of it"),
        ({"energy_variance": 2.3}, "", "step_size=0.05 to 0.025, half of it"),
        (
            {"divergences": 1},  # Of hmc.
            "The steps are too long for the posterior: 1 draw diverged, and",
            "step_size=0.05 to 0.025, half of it",
        ),
    ],
)
def test_a_step_size_that_nothing_tuned_and_that_is_too_large_gets_a_smaller_one(
    posterior, begins, remedy
):
    report = {
        "posterior": {"num_warmup": 0, "divergences": 0} | posterior,
        "config": {"sampler": {"step_size": 0.05}},
    }
    if begins is None:
        assert too_long(report) == []
    else:
        (line,) = too_long(report)
        assert line.startswith(begins)
        assert re.search(f"In a new workdir lower config.sampler.{remedy}", line)


def test_chains_that_see_batches_have_no_step_size_that_is_too_large():
    assert too_long({"posterior": {"draw_temperature": 1.0}}) == []
