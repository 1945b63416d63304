"""Splits by a column: groups are whole, the latest rows test, and what is said of both."""

import itertools

import numpy as np
import pytest
from run_parts import strata_of

from ensemble.data.source import Examples, Parts, Request
from ensemble.data.splitting import POOL, carve
from ensemble.data.tables.table import load_table


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


def test_all_files_have_the_decimal_mark_that_the_first_one_shows(tmp_path):
    lines = [f"{k},5;1,25{k % 10}" for k in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["x;y", *lines]))
    (tmp_path / "test.csv").write_text("\n".join(["x;y", *(f"{k};1,125" for k in range(9))]))
    source = load_table(f"csv:{tmp_path}", Request(target="y", kind="targets"))
    np.testing.assert_allclose(source.targets("test"), 1.125)
