"""The table of the bias of sgld and sghmc is that of its results, and its figures are right."""

import importlib
import json

import numpy as np
import pytest
from conftest import ROOT


@pytest.fixture
def bias(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("sgmcmc_bias")


def test_the_docs_have_the_table_of_the_results(bias):
    content = json.loads(bias.RESULTS.read_text())
    assert [row["name"] for row in content["rows"]] == list(bias.RUNS)
    assert {"commit", "date"} <= content["rows"][-1].keys()
    page = (ROOT / "benchmarks" / "GOALS.md").read_text()
    assert bias.format_table(content["rows"]) in page, "python benchmarks/sgmcmc_bias.py"


def test_moments_are_held_beside_those_that_are_known(bias):
    draws = np.random.default_rng(0).normal(size=(8, 50, 3))
    known = bias.moments(draws)
    wider = draws * np.array([1.0, 1.0, 1.2]) + np.array([0.0, 0.5, 0.0])
    found = bias.bias(bias.moments(wider), known)
    assert found["mean_off"] == pytest.approx(0.5 / known["sd"][1])
    assert found["sd_low"] == pytest.approx(1)
    assert found["sd_high"] == pytest.approx(1.2)
    row = {"name": "`sgld`, .1", "temperature": 1.0014, "ess_bulk_min": 1234.5, **found}
    (line,) = bias.format_table([row]).splitlines()[2:]
    expected = f"| `sgld`, .1 | 1.001 | {bias.decimals(found['mean_off'])} | 1.00 to 1.20 | 1,234 |"
    assert line == expected


def test_every_run_is_of_settings_that_stand(bias):
    from run_parts import validated  # Of this test alone.

    for config in bias.RUNS.values():
        validated({**bias.COMMON, **({} if config is bias.HMC else bias.BATCHES), **config})
