"""`fit` beside a search of CatBoost: differences, shares and the goal."""

import importlib

import pytest
from conftest import ROOT


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def rows_of(module, table, split=0, nll=1.0, spread=1.0):
    """Rows of both methods: ours have these scores, and CatBoost's are 2."""
    key = {"table": table, "split": split, "num_train": 10, "num_test": 5, "seconds": 1.0}
    name = "brier" if table == "digits" else "crps"
    return [
        {"method": module.FIT, **key, "nll": nll, name: spread, "cpu_seconds": 60.0},
        {"method": module.SEARCH, **key, "nll": 2.0, name: 2.0, "cpu_seconds": 50.0},
    ]


def test_splits_are_averaged_and_few_targets_have_no_nll(module):
    beside = module("fit_beside_search")
    rows = [
        *rows_of(beside, "yacht", nll=1.0), *rows_of(beside, "yacht", 1, nll=4.0, spread=5.0),
        *rows_of(beside, "wine", nll=9.0), *rows_of(beside, "digits", nll=2.5),
        *rows_of(beside, "power")[:1],
    ]  # fmt: skip
    found = beside.content(rows)["summary"]
    assert found["by_table"] == {
        "yacht": {"splits": 2, "spread": 1.0, "nll": 0.5},
        "wine": {"splits": 1, "spread": -1.0},
        "digits": {"splits": 1, "spread": -1.0, "nll": 0.5},
    }
    assert (found["nll"]["lower"], found["nll"]["tables"]) == (0, 2)
    assert (found["spread"]["lower"], found["spread"]["tables"]) == (2, 3)
    low, high = found["spread"]["interval"]
    assert (low, high) == pytest.approx((0.0943, 0.9916), abs=1e-3)  # Clopper and Pearson's.


def test_the_goal_is_of_the_better_score_and_of_all_tables(module):
    beside, goals = module("fit_beside_search"), module("goals")
    rows = [
        one
        for number, table in enumerate(beside.TABLES)
        for split in range(2)
        for one in rows_of(beside, table, split, 1.0 if number < 4 else 3.0, spread=number / 5)
    ]
    measured = goals.fit_won()(beside.content(rows))
    assert measured.value == pytest.approx(10 / 16)
    assert measured.of == "CRPS or Brier score, 10 of 16 tables, 95%"
    assert goals.fit_won()(beside.content(rows[4:])) is None
    assert goals.fit_won()(beside.content(rows[2:])) is None, "a table has one split"


def test_what_is_missing_and_what_failed_is_shown(module):
    beside = module("fit_beside_search")
    rows = rows_of(beside, "yacht")
    rows.append({"method": beside.FIT, "table": "yacht", "split": 1, "failed": "no memory"})
    text = beside.format_all(rows)
    assert "| yacht | -1.0000 | -1.0000 | 50, 1 missing | 60, 1 failed |" in text
    assert "| hpc_data |  |  | 2 missing | 2 missing |" in text
    assert "The NLL of `ensemble.fit` is lower on 1 of 1 tables" in text


def test_all_reported_tables_are_asked(module):
    beside, data = module("fit_beside_search"), module("neutral_data")
    assert sorted(beside.TABLES) == sorted(data.REPORTED)
