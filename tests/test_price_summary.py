"""What a posterior's price is said to be follows from its rows, and the docs say what these do."""

import importlib
import json

import pytest
from conftest import ROOT


@pytest.fixture
def price(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("price_summary")


def make_row(split, nll, others):
    against = {
        name: {
            "ensemble": {"nll": one, "rmse": 1.0},
            "difference": {"nll": one - nll},
            "recipe_by_nll": {"interval": (one - nll - 0.5, one - nll + 0.25)},
        }
        for name, one in zip(("start", "equal_seconds", "best_network"), others, strict=True)
    }
    return {
        "problem": "yacht", "split": split, "stage": "evaluation", "against": against,
        "scores": {"nll": nll, "rmse": 2.0}, "rhat_max": 1.0 + split / 10,
        "sizes": {"train_inputs": 90, "test_inputs": 10},
        "share_of_seconds": {"start": 0.1, "equal_seconds": 0.9, "best_network": 1.0},
    }  # fmt: skip


def test_a_split_has_the_interval_of_its_evaluation(price):
    found = price.summarise([make_row(0, 1.0, (3.0, 2.0, 2.5))])["yacht"]
    assert found["best_other"] == "equal_seconds"
    assert found["difference"]["equal_seconds"]["mean"] == -1
    assert found["difference"]["equal_seconds"]["interval"] == (-1.25, -0.5)
    assert found["is_below_best"]


def test_over_splits_the_interval_is_corrected_for_shared_rows(price):
    rows = [make_row(k, 1.0, (3.0, 2.0 + gain, 4.0)) for k, gain in enumerate((-0.1, 0.0, 0.1))]
    found = price.summarise(rows)["yacht"]
    low, high = found["difference"]["equal_seconds"]["interval"]
    half_width = 4.302653 * 0.1 * (1 / 3 + 1 / 9) ** 0.5  # t on two degrees of freedom.
    assert (low, high) == pytest.approx((-1 - half_width, -1 + half_width))
    assert found["rhat_max"] == [1.0, 1.1, 1.2]
    assert "| yacht | 3 | 1.20 | 1.000 | 3.000 | 2.000 | 4.000 | -1.000 [" in price.format_all(rows)
    assert price.format_all(rows).endswith("] | 90%, 100% |")
    # The number of members was the limit on all tables, and not the seconds.
    assert "| its start | same network, at most 100 | best network |" in price.format_all(rows)


def test_the_docs_have_the_table_of_the_results(price):
    path = ROOT / "benchmarks" / "results" / "price.json"
    if not path.exists():
        pytest.skip("benchmarks/price.py has not been run")
    assert (
        price.format_all(json.loads(path.read_text())["rows"])
        in (ROOT / "benchmarks" / "GOALS.md").read_text()
    )
