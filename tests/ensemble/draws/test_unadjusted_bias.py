"""What is told of the bias of MCLMC, and where nothing is."""

import pytest

from ensemble.draws.unadjusted_bias import expected_bias


def test_a_step_near_the_limit_of_stability_has_no_worst_direction_told():
    assert expected_bias(5e-4, 10)[0] == pytest.approx(0.0103, rel=0.01)
    assert expected_bias(5e-4, 10)[1] == pytest.approx(0.06, rel=0.01)
    assert expected_bias(5e-4, 10_000)[1] is None


def test_of_a_step_that_is_far_too_long_nothing_is_told():
    assert expected_bias(5e-4, 10_000)[0] is not None
    assert expected_bias(82.0, 994) == (None, None)
    assert expected_bias(float("inf"), 2) == (None, None)
