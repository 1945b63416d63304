"""The section on posteriordb's posteriors is that of the results, which keep what is promised."""

import importlib
import json

import pytest
from conftest import ROOT

RESULTS = json.loads((ROOT / "benchmarks" / "results" / "posteriordb.json").read_text())["rows"]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("posteriordb_page")


def test_the_page_is_that_of_the_results(page):
    assert (ROOT / "docs" / "statements.md").read_text().endswith("\n\n" + page.text(RESULTS))
    rows = (ROOT / "benchmarks" / "results" / "posteriordb.csv").read_text()
    assert rows == page.rows_as_csv(RESULTS)


@pytest.mark.parametrize(("method", "least"), [("nuts", 12), ("hmc", 10), ("adjusted_mclmc", 10)])
def test_no_run_is_silently_wrong_and_most_agree(page, method, least):
    mine = [row for row in RESULTS if row["method"] == method]
    assert len(mine) == 14
    assert all(page.agrees(row) or not page.has_converged(row) for row in mine)
    assert not any(page.has_converged(row) for row in mine if row["divergences"])
    assert sum(map(page.agrees, mine)) >= least


def test_the_largest_of_one_mean_and_sd_by_chance(page):
    assert page.by_chance(1) == pytest.approx(2.236, abs=1e-3)  # Sidak's for two.
