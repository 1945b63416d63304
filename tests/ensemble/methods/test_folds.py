"""The folds of the training rows."""

import dataclasses

import numpy as np

from ensemble.data.dataset import dataset_from_arrays
from ensemble.data.source import Strata
from ensemble.methods.kfold_bagging import make_folds


def source(num_rows=90, strata=None, **arrays):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_rows, 3))
    if not arrays:
        arrays = {"targets": rng.normal(size=num_rows)}
    data = {"train_inputs": inputs, **{f"train_{key}": one for key, one in arrays.items()}}
    found = dataset_from_arrays(data, hold_out=False)
    return found if strata is None else dataclasses.replace(found, groups={"train": strata})


def test_every_row_is_of_one_fold_and_a_quarter_is_held_out_by_two_members():
    folds = make_folds(source(), 4, seed=1)
    assert sorted(np.bincount(folds.of_rows)) == [22, 22, 23, 23]
    np.testing.assert_array_equal(np.bincount(folds.of_rows[folds.is_shared]), [5] * 4)
    holders = np.zeros(90, int)
    for member in range(4):
        held = folds.held_out(member)
        learned = folds.learned(member)
        np.testing.assert_array_equal(np.sort(np.r_[held, learned]), np.arange(90))
        np.testing.assert_array_equal(held, folds.held_out(member + 4))
        holders[held] += 1
    np.testing.assert_array_equal(holders, 1 + folds.is_shared)
    assert folds.num_learned == 90 - 22 - 5
    again = make_folds(source(), 4, seed=1)
    other = make_folds(source(), 4, seed=2)
    np.testing.assert_array_equal(folds.of_rows, again.of_rows)
    assert (folds.of_rows != other.of_rows).any()


def test_folds_are_alike_in_classes_and_in_ranks():
    labels = np.repeat([0, 1, 2], [120, 48, 12])
    found = make_folds(source(180, labels=labels), 3, 0)
    for fold in range(3):
        np.testing.assert_array_equal(np.bincount(labels[found.of_rows == fold]), [40, 16, 4])
    targets = np.random.default_rng(3).normal(size=180) ** 3
    found = make_folds(source(180, targets=targets), 3, 0)
    ranks = np.argsort(np.argsort(targets))
    for fold in range(3):  # Four of each twelve.
        np.testing.assert_array_equal(np.bincount(ranks[found.of_rows == fold] // 12), [4] * 15)


def test_equal_inputs_are_in_one_fold():
    inputs = np.random.default_rng(0).normal(size=(80, 3))
    inputs[40:60] = inputs[:20]
    data = {"train_inputs": inputs, "train_targets": np.arange(80.0)}
    folds = make_folds(dataset_from_arrays(data, hold_out=False), 4, 0)
    np.testing.assert_array_equal(folds.of_rows[40:60], folds.of_rows[:20])
    np.testing.assert_array_equal(folds.is_shared[40:60], folds.is_shared[:20])


def test_groups_are_whole_and_times_are_periods():
    names = np.repeat([f"p{i:02d}" for i in range(15)], 6)
    folds = make_folds(source(strata=Strata("patient", "group", names)), 3, 0)
    for name in set(names):
        assert len(set(folds.of_rows[names == name])) == 1
    assert sorted(np.bincount(folds.of_rows)) == [30, 30, 30]
    np.testing.assert_array_equal(np.bincount(folds.of_rows[folds.is_shared]), [6, 6, 6])
    few = make_folds(source(strata=Strata("patient", "group", np.repeat(list("abcdef"), 15))), 3, 0)
    np.testing.assert_array_equal(np.bincount(few.of_rows[few.is_shared]), [15, 15, 15])
    times = np.random.default_rng(1).permutation(90).astype(float)
    strata = Strata("day", "time", times)
    folds = make_folds(source(strata=strata), 3, 0)
    for fold in range(3):
        np.testing.assert_array_equal(
            np.sort(times[folds.of_rows == fold]), np.arange(30) + 30 * (2 - fold)
        )
    # A member's rows are one period, the latest of the fold before its own among them.
    np.testing.assert_array_equal(np.sort(times[folds.held_out(0)]), np.arange(53, 90))
    last = make_folds(source(strata=strata), 1, 0)
    np.testing.assert_array_equal(np.sort(times[last.held_out(0)]), np.arange(81, 90))
