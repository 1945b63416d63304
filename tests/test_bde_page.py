"""The section beside the library bde is that of the results; its scores and intervals are right."""

import importlib
import json

import numpy as np
import pytest
from conftest import ROOT

from ensemble.metrics import regression

RESULTS = ROOT / "benchmarks" / "results" / "bde.json"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def row(method, split, seed, **scores):
    cost = {"cpu_seconds": 20.0, "commit": "a", "date": "2026-01-01"}
    return {"method": method, "table": "airfoil", "split": split, "seed": seed} | cost | scores


def test_the_page_is_that_of_the_results(module):
    text = module("bde_page").text(json.loads(RESULTS.read_text()))
    page = (ROOT / "docs" / "results.md").read_text()
    assert f"\n\n{text}" in page, "python benchmarks/bde.py --page"


def test_a_section_of_a_page_is_replaced_alone(module, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## One\n\nold\n\n### Part\n\n## Two\n\ntwo\n")
    module("side_by_side").write_section(page, "## One\n\nnew\n")
    module("side_by_side").write_section(page, "## Two\n\nlast\n")
    module("side_by_side").write_section(page, "## Two\n\nlast\n")
    assert page.read_text() == "# Page\n\n## One\n\nnew\n\n## Two\n\nlast\n"


def test_what_tells_most_is_run_first(module):
    bde = module("bde")
    cells = bde.plan(bde.METHODS, ("bike", "airfoil"), range(11), range(5))
    assert len(cells) == len(set(cells)) == 2 * 11 * (7 * 5 + 1)
    assert cells[: len(bde.METHODS)] == [(one, "airfoil", 0, 0) for one in bde.METHODS]
    by_stage = list(dict.fromkeys((one.table, one.split > 0, one.seed > 0) for one in cells))
    assert by_stage[:3] == [("airfoil", *one) for one in ((0, 0), (0, 1), (1, 0))]
    assert by_stage[3:6] == [("bike", *one) for one in ((0, 0), (0, 1), (1, 0))]


def test_scores_are_those_of_a_mixture(module):
    rng = np.random.default_rng(0)
    means, sds, targets = rng.normal(size=(3, 5)), rng.uniform(0.5, 2, (3, 5)), rng.normal(size=5)
    scores = module("bde_work").mixture_scores(means, sds, targets)
    variance = np.mean(sds**2, axis=0) + np.var(means, axis=0)
    expected = regression.gaussian_nll(means.mean(axis=0), variance, targets).mean()
    assert scores["nll_by_moments"] == pytest.approx(expected)
    each = np.exp(-regression.gaussian_nll(means, sds**2, targets))
    assert scores["nll"] == pytest.approx(-np.log(each.mean(axis=0)).mean())
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((means.mean(axis=0) - targets) ** 2)))


def test_a_page_of_few_cells_says_what_is_missing(module):
    rows = [
        row(method, split, 0, rmse=value, nll_by_moments=-value, nll=-value, seconds=seconds)
        for method, offset, seconds in (("posterior_24000", 0.0, 10), ("bde_51000", 0.1, 30))
        for split, value in enumerate((0.1 + offset, 0.3 + offset))
    ]
    text = module("bde_page").text({"rows": rows, "machine": "a machine"})
    assert "| our posterior, 24,000 steps | 1 | 0.1000 | -0.1000 | -0.1000 | 10 | 20 |" in text
    assert "| bde, 51,000 steps | 2 | -0.1000 [-0.1000, -0.1000] | +0.1000" in text
    assert "our posterior, 24,000 steps has 1 of 5 seeds and 1 of 10 other splits" in text
    assert "our ensemble was not run" in text
    assert "those of bde at 51,000 steps: our posterior, 24,000 steps 0.333." in text
    assert "Nothing of this was run on this machine yet." in text  # Of bike.


def test_the_page_says_how_far_chains_agree_and_how_unlike_the_costs_are(module):
    scores = {"rmse": 1.0, "nll_by_moments": 1.0, "nll": 1.0, "seconds": 10}
    rows = [
        row("posterior_24000", 0, seed, rhat_max=rhat, **scores)
        for seed, rhat in enumerate((1.7, 1.449, 1.5))
    ]
    rows += [row("bde_51000", 0, 0, **scores), row("ensemble", 0, 0, **scores)]
    rows[-1]["cpu_seconds"] = 4.0
    page = module("bde_page")
    assert "| 10 | 20 | 1.45 to 1.70 |" in page.published_split(rows, "airfoil")
    assert "| our ensemble | 1 | 1.0000 | 1.0000 | 1.0000 | 10 | 4 |  |" in page.published_split(
        rows, "airfoil"
    )
    cost = page.cost(rows, "airfoil").replace("\n", " ")
    assert "3 of our posterior, 24,000 steps, stand beside 1 of bde at 51,000 steps." in cost
    assert "20 CPU seconds of our posterior, with its start, stand beside 4 of our en" in cost
    assert "Of model seeds" not in page.cost(rows[2:], "airfoil")


def test_an_interval_allows_for_training_rows_in_common(module):
    low, high = module("price_summary").over_splits([0.0, 2.0], share=0.25)
    # Student's t of one degree of freedom, and a variance of 2 times 1/2 + 1/4.
    assert (low, high) == pytest.approx((1 - 12.7062 * 1.5**0.5, 1 + 12.7062 * 1.5**0.5))
