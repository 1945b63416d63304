"""Rows of targets: columns that stay together."""

import numpy as np

from ensemble import target_rows

NUMBERS = np.arange(4, dtype=np.float32)
FLAGS = np.array([True, False, False, True])


def test_rows_are_taken_apart_as_they_were_put_together():
    columns = {"targets": NUMBERS, "target_errors": NUMBERS / 2, "censored": FLAGS}
    rows = target_rows.joined(columns)
    assert rows.shape == (4,)
    chosen = target_rows.columns(rows[[3, 0]])
    for name, column in columns.items():
        np.testing.assert_array_equal(chosen[name], column[[3, 0]])
    np.testing.assert_array_equal(target_rows.values(rows), NUMBERS)
    assert target_rows.on_devices(rows).keys() == columns.keys()


def test_numbers_alone_stay_an_array():
    assert target_rows.joined({"targets": NUMBERS}) is NUMBERS
    assert target_rows.on_devices(NUMBERS) is NUMBERS
    assert target_rows.values(NUMBERS) is NUMBERS
    assert target_rows.annotation(NUMBERS, "censored") is None


def test_all_but_the_nll_leave_out_censored_rows():
    rows = target_rows.joined({"targets": NUMBERS, "censored": FLAGS})
    mask = np.float32([1, 1, 0, 1])
    np.testing.assert_array_equal(target_rows.scored("nll", rows, mask), mask)
    np.testing.assert_array_equal(target_rows.scored("squared_error", rows, mask), [0, 1, 0, 0])
    np.testing.assert_array_equal(target_rows.scored("squared_error", NUMBERS, mask), mask)
