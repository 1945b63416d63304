"""Splits by a column: groups are whole, the latest rows test, and what is said of both."""

import itertools

import numpy as np
import pytest
from run_parts import strata_of

from ensemble.data.source import Examples, Request
from ensemble.data.splitting import POOL, assign_splits


def places(values, kind, seed=0):
    strata = {POOL: strata_of(values, kind)}
    zeros = np.zeros(len(values))
    parts = {POOL: Examples(zeros, zeros)}
    return assign_splits(parts, "it", Request(seed=seed), lambda part: zeros, strata)


def test_groups_are_whole_and_the_seed_chooses_them():
    groups = np.random.default_rng(0).integers(0, 40, 1003).astype(str)
    found = places(groups, "group")
    rows = [one[1] for one in found.values()]
    assert sorted(np.concatenate(rows)) == list(range(1003))
    for split, one in found.items():
        outside = np.delete(groups, one[1])
        assert not set(groups[one[1]]) & set(outside), split
        assert len(one[1]) == pytest.approx(700 if split == "train" else 100, abs=40)
    other = places(groups, "group", seed=1)
    assert set(groups[other["test"][1]]) != set(groups[found["test"][1]])


def test_the_latest_rows_test_and_equal_times_are_together():
    times = np.random.default_rng(0).integers(0, 300, 1003).astype(float)
    found = places(times, "time")
    ends = [(times[one[1]].min(), times[one[1]].max()) for one in found.values()]
    assert list(found) == ["train", "validation", "calibration", "test"]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert len(found["test"][1]) == pytest.approx(100, abs=8)


def test_few_groups_get_one_split_each():
    groups = np.array(["a"] * 90 + ["b", "c", "d"])
    assert sorted(len(one[1]) for one in places(groups, "group").values()) == [1, 1, 1, 90]
