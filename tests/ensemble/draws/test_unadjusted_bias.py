"""What is told of the bias of MCLMC, and where nothing is."""

import pytest

from ensemble.draws.diagnostics import expected_bias


def test_of_a_step_that_is_far_too_long_nothing_is_told():
    assert expected_bias(5e-4, 10) == pytest.approx(0.0103, rel=0.01)
    assert expected_bias(5e-4, 10_000) is not None
    assert expected_bias(82.0, 994) is None
    assert expected_bias(float("inf"), 2) is None
