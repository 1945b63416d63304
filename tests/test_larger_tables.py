"""Embeddings and shared weights on larger tables: cells, differences and goals."""

import importlib

import pytest
from conftest import ROOT


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def row(method, table, split=0, nll=1.0, seconds=1.0):
    key = {"method": method, "table": table, "split": split}
    return key | {"nll": nll, "cpu_seconds": seconds}


def test_goals_count_tables_that_both_methods_have(module):
    larger, goals = module("larger_tables"), module("goals")
    rows = [
        row(method, table, split, nll + 0.1 * split + rise * split)
        for table in larger.TABLES
        for split in range(3)
        for method, nll, rise in (
            (larger.PLAIN, 1.0, 0), (larger.EMBEDDED, 0.9, 0.01),
            (larger.SHARED, 0.9, 0.2), (larger.EQUAL_SECONDS, 1.05, 0),
        )
    ]  # fmt: skip
    content = larger.content(rows)
    embeddings = goals.larger_won("embeddings")(content)
    assert embeddings == (4, None, "on 4 the whole 95% interval is below zero", False)
    shared = goals.larger_won("tabm")(content)
    assert shared.value == 0, "-.15, .05 and .25 are above zero on average"
    assert goals.larger_won("tabm")(larger.content(rows[12:])) is None
    of_one_split = [one for one in rows if not one["split"]]
    assert goals.larger_won("tabm")(larger.content(of_one_split)) is None


def test_the_interval_of_a_difference_is_students(module):
    larger = module("larger_tables")
    rows = [row("a", "SLID", k, nll) for k, nll in enumerate((1.0, 2.0, 3.0))]
    rows += [row("b", "SLID", k, 0.0, seconds=2.0) for k in range(4)]
    found = larger.beside(rows, "a", "b", "SLID")
    half = 4.302653 / 3**0.5  # Of two degrees of freedom, and a standard deviation of 1.
    assert found["interval"] == pytest.approx([2 - half, 2 + half])
    assert (found["less"], found["splits"], found["seconds"]) == (2.0, 3, 0.5)


def test_failed_and_missing_cells_are_shown(module):
    larger = module("larger_tables")
    failed = {"method": larger.SHARED, "table": "SLID", "split": 0, "failed": "no memory"}
    text = larger.format_all([row(larger.PLAIN, "SLID", nll=2.5, seconds=30.0), failed])
    assert "| SLID | 2.500 (1; 30 s) | missing | 1 failed | missing |" in text
    assert larger.content([failed])["summary"] == {"embeddings": {}, "tabm": {}}


def test_as_many_networks_as_take_the_seconds_of_tabm(module):
    larger = module("larger_tables")
    plain = {"cpu_seconds": 30.0, "share_to_first_step": 1 / 3, "members": 8}
    assert larger.number_of_members(plain, {"cpu_seconds": 60.0}) == 20  # 10 s, and 2.5 s of each.
    assert larger.number_of_members(plain, {"cpu_seconds": 5.0}) == 1
