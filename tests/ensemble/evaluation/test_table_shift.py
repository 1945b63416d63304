"""Shifted tables: what each kind does, and that severities differ by nothing else."""

from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import make_blobs

from ensemble.evaluation.table_shift import (
    TABLE_SHIFTS,
    box,
    columns_of,
    is_table,
    shift_table,
    shifts_of,
)
from ensemble.source import Feature
from ensemble.sources import dataset_from_arrays


@pytest.fixture(scope="module")
def source():
    blobs = make_blobs(num_examples=403)
    blobs["inputs"] = blobs["inputs"] * [1, 10, 100, 1e3, 1, 0] + [0, 5, 1e4, 0, 0, 7]
    return dataset_from_arrays(blobs, "blobs")


@pytest.fixture(scope="module")
def rows(source):
    return source.splits["test"].inputs


def test_columns_are_those_of_the_training_rows(source):
    columns, train = columns_of(source), source.splits["train"].inputs.astype(np.float64)
    np.testing.assert_allclose(columns.mean, train.mean(axis=0))
    np.testing.assert_allclose(columns.deviation, train.std(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(columns.low, train.min(axis=0))
    np.testing.assert_array_equal(columns.high, train.max(axis=0))
    assert is_table(source)


@pytest.mark.parametrize("name", TABLE_SHIFTS)
def test_a_shift_is_a_function_of_its_arguments_and_keeps_shape_and_type(source, rows, name):
    columns = columns_of(source)
    first, again = (shift_table(rows, name, 3, columns) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first.shape, first.dtype) == (rows.shape, rows.dtype)
    assert np.isfinite(first).all()
    changed = [(shift_table(rows, name, s, columns) != rows).mean() for s in (1, 5)]
    assert 0 < changed[0] <= changed[1]


def test_what_is_missing_is_the_mean_and_stays_missing(source, rows):
    columns = columns_of(source)
    few, many = (shift_table(rows, "missing", severity, columns) for severity in (2, 4))
    mean = np.broadcast_to(columns.mean.astype(np.float32), rows.shape)
    np.testing.assert_array_equal(few[few != rows], mean[few != rows])
    assert (many == mean)[few == mean].all()
    assert abs((few[:, :5] != rows[:, :5]).mean() - 0.2) < 0.1


def test_permuted_columns_keep_their_values(source, rows):
    shifted = shift_table(rows, "permuted", 5, columns_of(source))
    np.testing.assert_array_equal(np.sort(shifted, axis=0), np.sort(rows, axis=0))
    one = shift_table(rows, "permuted", 1, columns_of(source))
    changed = (one != rows).any(axis=0)
    assert 1 <= changed.sum() <= 2  # A fifth of six columns, rounded up.
    np.testing.assert_array_equal(one[:, changed], shifted[:, changed])


def test_one_column_of_each_row_lies_beyond_the_training_range(source, rows):
    columns = columns_of(source)
    shifted = shift_table(rows, "beyond", 4, columns)
    beyond = (shifted < columns.low) | (shifted > columns.high)
    np.testing.assert_array_equal((shifted != rows).sum(axis=1), 1)
    assert beyond[shifted != rows].all()
    assert not beyond[:, 5].any()  # A constant column has no range.


def test_made_rows_lie_within_or_beyond_every_range(source):
    columns = columns_of(source)
    within = box(columns, 200, 0.0, np.dtype(np.float64))
    assert ((within >= columns.low) & (within <= columns.high)).all()
    outside = box(columns, 200, 1.0, np.dtype(np.float64))[:, :5]
    low, high = columns.low[:5], columns.high[:5]
    assert ((outside <= low) | (outside >= high)).all()
    assert ((outside >= 2 * low - high) & (outside <= 2 * high - low)).all()


@pytest.mark.parametrize("name", ["missing", "permuted"])
def test_the_inputs_of_a_category_are_shifted_together(source, rows, name):
    columns = columns_of(source)._replace(group=np.array([0, 0, 0, 1, 2, 3]))
    changed = shift_table(rows, name, 3, columns) != rows
    of_category, others = changed[:, :3], changed[:, 3:5]
    assert (of_category.all(axis=1) | ~of_category.any(axis=1)).mean() > 0.99
    assert 0 < changed.mean() < 1
    assert name != "missing" or (of_category[:, 0] != others[:, 0]).any()


class _Table:
    """A number that may be missing, its flag, and a category of two."""

    features = (
        Feature("size", 0, True, 0, 1, is_number=True),
        Feature("size is missing", 0, is_flag=True),
        Feature("town=a", 1),
        Feature("town=b", 1),
    )


def test_noise_is_added_to_numbers_that_are_known_and_to_nothing_else(source):
    rng = np.random.default_rng(0)
    gaps = rng.random(400) < 0.25
    size = np.where(gaps, 50, rng.normal(0, 10, 400))
    town = np.eye(2)[rng.integers(2, size=400)]
    rows = np.column_stack([size, gaps, town]).astype(np.float32)
    own = dataset_from_arrays({"inputs": rows, "targets": size}, "arrays")
    table = SimpleNamespace(
        table=_Table(), input_shape=(4,), read=own.read, sizes=own.sizes, splits=own.splits
    )
    columns = columns_of(table)
    assert columns.deviation[0] == pytest.approx(10, rel=0.15)  # Of the known values.
    assert abs(columns.mean[0]) < 2
    for name in ("noisy", "scaled"):
        changed = shift_table(rows, name, 5, columns) != rows
        assert not changed[:, 1:].any()
        np.testing.assert_array_equal(changed[:, 0], ~gaps)
    noise = (shift_table(rows, "noisy", 2, columns) - rows)[~gaps, 0]
    assert noise.std() == pytest.approx(0.2 * columns.deviation[0], rel=0.1)
    beyond = shift_table(rows, "beyond", 3, columns)
    assert (beyond[:, 0] > columns.high[0]).any()
    assert not beyond[:, 1].any()
    np.testing.assert_array_equal(beyond[:, 2:], rows[:, 2:])
    none = columns._replace(is_number=np.zeros(4, bool))
    assert list(shifts_of(none)) == ["missing", "permuted"]
