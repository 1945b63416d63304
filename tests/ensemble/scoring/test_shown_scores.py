"""How scores are written: in one style, with at most four significant digits."""

import math

import pytest

from ensemble.scoring.score import digits, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.18, "0.1800"),
        (0.0, "0.0000"),
        (-0.0123456, "-0.0123"),
        (0.99994, "0.9999"),
        (0.99996, "1.000"),
        (1.23456, "1.235"),
        (-12.3456, "-12.35"),
        (999.96, "1,000"),
        (3021.4, "3,021"),
        (0.000393, "0.0004"),
        (0.0000393, "3.93e-05"),
        (1.25e7, "1.25e+07"),
        (math.inf, "inf"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_numbers_have_four_digits(value, text):
    assert digits(value) == text


def test_shares_are_percent():
    shares = [0.90854, 1.0, 0.0, None, math.nan]
    assert [percent(one) for one in shares] == ["90.85%", "100%", "0.00%", "-", "-"]
