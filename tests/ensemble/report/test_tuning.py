"""Why a warm-up has failed, in a line with what to do."""

import numpy as np
import pytest
from words.reports import too_long_of, untuned_of

from ensemble.report.tuning import too_long, untuned


@pytest.mark.parametrize(
    ("posterior", "value"),
    [
        ({"converged": True, "accept": 1.0}, None),
        ({"accept": 0.9}, None),
        ({"accept": 1.0, "num_warmup": 0}, None),
        ({"accept": 1.0}, "100.0%"),
        ({"step_size": [0.1, None]}, "chains 3,"),
        ({"step_size": [0.0, 0.1]}, "chains 1,"),
        ({"energy_variance": 1e-9}, "1e-09"),
        ({"energy_variance": 4e-4}, None),
    ],
)
def test_a_warmup_that_failed_is_said_in_a_line(posterior, value):
    found = untuned_of(posterior)
    assert len(found) == (value is not None)
    assert all(value in line and "config.sampler.num_warmup=50" in line for line in found)


def test_chains_without_a_warmup_have_none_that_failed():
    assert untuned({"posterior": {"converged": False, "draw_temperature": 1.0}}) == []


@pytest.mark.parametrize(
    ("posterior", "lower"),
    [
        ({"energy_variance": 0.65}, None),
        ({"energy_variance": 82.0, "num_warmup": 500}, None),
        ({"energy_variance": 82.0}, "0.016"),
        ({"energy_variance": 82.0, "divergences": 30}, "0.016"),
        ({"energy_variance": np.inf}, "0.025"),
        ({"energy_variance": 2.3}, "0.025"),
        ({"divergences": 1}, "0.025"),  # Of hmc.
    ],
)
def test_a_step_size_that_nothing_tuned_and_that_is_too_large_gets_a_smaller_one(posterior, lower):
    found = too_long_of(posterior)
    assert len(found) == (lower is not None)
    assert all(f"config.sampler.step_size=0.05 to {lower}," in line for line in found)


def test_chains_that_see_batches_have_no_step_size_that_is_too_large():
    assert too_long({"posterior": {"draw_temperature": 1.0}}) == []
