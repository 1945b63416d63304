"""What benchmarks/converging.py trains on, and what its table makes of rows."""

import importlib

import numpy as np
import pytest
from conftest import ROOT


@pytest.fixture
def converging(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("converging")


def make_row(name, split, nll, **more):
    scores = {"nll": nll, "crps": 0.5, "rmse": 1.0, "coverage_90": 0.9}
    row = {"table": "yacht", "split": split, "name": name, "test_share": 0.1, "cpu_seconds": 7.0}
    return {**row, "scores": scores, **more}


def test_a_gap_is_the_middle_third_of_a_column(converging):
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(90, 2)), np.arange(90.0)
    split = converging.tables_data.Split(inputs[:60], targets[:60], inputs[60:], targets[60:])
    found = converging.with_gap(split, 1)
    low, high = np.quantile(inputs[:, 1], [1 / 3, 2 / 3])
    assert found.test_inputs.shape == (30, 2)
    assert ((found.test_inputs[:, 1] > low) & (found.test_inputs[:, 1] < high)).all()
    outside = found.train_inputs[:, 1]
    assert ((outside < low) | (outside > high)).all()
    assert sorted([*found.train_targets, *found.test_targets]) == [*targets]
    np.testing.assert_array_equal(inputs[found.test_targets.astype(int)], found.test_inputs)


def test_the_table_compares_on_splits_that_both_have(converging):
    assert {*converging.POSTERIORS, *converging.HEADS} < set(converging.ALL)
    rows = [make_row("8 chains", k, 1.0 + k, rhat_max=1.5 + k) for k in range(2)]
    rows += [make_row("32 chains", k, 0.9 + k, rhat_max=1.2) for k in range(3)]
    lines = converging.format_all(rows).splitlines()
    assert lines[2].startswith("| yacht (2) | 8 chains | 2.00 (2.50) | 1.500 | 0.500 | 1.000 |")
    assert lines[3].startswith("| yacht (3) | 32 chains | 1.20 (1.20) | 1.900 |")
    assert "| -0.100 [-0.100, -0.100] | 7 |" in lines[3]
