"""Splits by a column: groups are whole, the latest rows test, and what is said of both."""

import itertools

import numpy as np
import pytest
from run_parts import strata_of

from ensemble.data.source import Examples, Parts, Request
from ensemble.data.splitting import POOL, carve


def rows_of(values, kind, seed=0):
    """Rows of each split."""
    pool = Examples(np.arange(len(values)), np.zeros(len(values)))
    splits, _ = carve(Parts({POOL: pool}), "it", Request(seed=seed), strata=strata_of(values, kind))
    return {split: rows for split, (rows, _) in splits.items()}


def test_groups_are_whole_and_the_seed_chooses_them():
    groups = np.random.default_rng(0).integers(0, 40, 1003).astype(str)
    found = rows_of(groups, "group")
    assert sorted(np.concatenate([*found.values()])) == list(range(1003))
    for split, one in found.items():
        outside = np.delete(groups, one)
        assert not set(groups[one]) & set(outside), split
        assert len(one) == pytest.approx(700 if split == "train" else 100, abs=40)
    other = rows_of(groups, "group", seed=1)
    assert set(groups[other["test"]]) != set(groups[found["test"]])


def test_the_latest_rows_test_and_equal_times_are_together():
    times = np.random.default_rng(0).integers(0, 300, 1003).astype(float)
    found = rows_of(times, "time")
    ends = [(times[one].min(), times[one].max()) for one in found.values()]
    assert list(found) == ["train", "validation", "calibration", "test"]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert len(found["test"]) == pytest.approx(100, abs=8)


def test_few_groups_get_one_split_each():
    groups = np.array(["a"] * 90 + ["b", "c", "d"])
    assert sorted(len(one) for one in rows_of(groups, "group").values()) == [1, 1, 1, 90]
