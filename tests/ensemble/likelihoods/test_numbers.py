"""Which numbers can be targets."""

import numpy as np
import pytest

from ensemble import UserError
from ensemble.likelihoods.numbers import target_range

SPREAD = np.array([-1.0, 0.0, 1.0, 4.0])


def test_the_range_is_of_the_values():
    assert target_range(SPREAD) == (1.0, SPREAD.std(), -1.0, 4.0)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([1.0], "one sample"),
        ([2.0, 2.0], "standard deviation 0"),
        (1e16 * SPREAD, "in other units"),
        (1e-18 * SPREAD, "in other units"),
        (1e6 + SPREAD, "subtract a constant"),
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(targets, message):
    with pytest.raises(UserError, match=message):
        target_range(np.asarray(targets))
