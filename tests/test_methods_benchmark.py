"""The benchmark of methods: which cells it has."""

import pytest
from conftest import ROOT


@pytest.fixture
def benchmark_of_methods(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import methods  # A script beside the package.

    return methods


def test_cells_go_seed_by_seed(benchmark_of_methods):
    args = benchmark_of_methods.parse(["--folder=x", "--seeds=2", "--data", "digits", "cells"])
    found = [(one["data"], one["seed"]) for one in benchmark_of_methods.cells(args)]
    assert found == [("digits", 0), ("cells", 0), ("digits", 1), ("cells", 1)]


def test_all_data_are_those_that_are_read(benchmark_of_methods):
    import neutral_data  # On the path now.

    assert set(benchmark_of_methods.DATA) <= set(neutral_data.REPORTED)
