"""Why a warm-up has failed, in a line with what to do."""

import re

import pytest

from ensemble.report.tuning import untuned


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
        "config": {"hmc": {"target_acceptance": 0.8}},
    }
    if says is None:
        assert untuned(report) == []
    else:
        (line,) = untuned(report)
        assert re.search(f"did not converge, because .*{says}.* Raise config.hmc.num_wa", line)


def test_chains_without_a_warmup_have_none_that_failed():
    assert untuned({"posterior": {"converged": False, "draw_temperature": 1.0}}) == []
