"""Splits by a column: groups are whole, the latest rows test, and what is said of both."""

import itertools

import numpy as np
import pytest
from run_parts import strata_of

from ensemble.notes import collected
from ensemble.sources.splitting import POOL
from ensemble.sources.tables.row_splits import assign_by


def places(values, kind, seed=0):
    strata = {POOL: strata_of(values, kind)}
    return assign_by(strata, {POOL: len(values)}, "it", seed, True)


def test_groups_are_whole_and_the_seed_chooses_them():
    groups = np.random.default_rng(0).integers(0, 40, 1003).astype(str)
    found = places(groups, "group")
    rows = [one.indices for one in found.values()]
    assert sorted(np.concatenate(rows)) == list(range(1003))
    for split, one in found.items():
        outside = np.delete(groups, one.indices)
        assert not set(groups[one.indices]) & set(outside), split
        assert len(one.indices) == pytest.approx(700 if split == "train" else 100, abs=40)
    other = places(groups, "group", seed=1)
    assert set(groups[other["test"].indices]) != set(groups[found["test"].indices])


def test_the_latest_rows_test_and_equal_times_are_together():
    times = np.random.default_rng(0).integers(0, 300, 1003).astype(float)
    found = places(times, "time")
    ends = [(times[one.indices].min(), times[one.indices].max()) for one in found.values()]
    assert list(found) == ["train", "validation", "calibration", "test"]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert len(found["test"].indices) == pytest.approx(100, abs=8)


def test_few_groups_get_one_split_each():
    groups = np.array(["a"] * 90 + ["b", "c", "d"])
    assert sorted(len(one.indices) for one in places(groups, "group").values()) == [1, 1, 1, 90]


@pytest.mark.parametrize(
    ("kind", "line"), [("group", "1 groups of column are in both"), ("time", "begin before the")]
)
def test_given_splits_that_share_are_told(kind, line):
    values = np.array(["1", "2"]) if kind == "group" else np.array([1.0, 2.0])
    strata = {split: strata_of(values[:k], kind) for split, k in (("train", 2), ("test", 1))}
    with collected() as notes:
        assign_by(strata, {"train": 2, "test": 1}, "it", 0, False)
    assert line in notes[0]
