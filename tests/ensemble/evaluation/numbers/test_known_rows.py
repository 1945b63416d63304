"""Evaluations of targets that are censored, or measured with an error."""

import re

import numpy as np
import pytest
from conftest import small_config
from run_parts import evaluated

import ensemble
from ensemble.evaluation.questions import calibration
from ensemble.evaluation.sections import score_conformal, score_factor
from ensemble.likelihoods import of_data
from ensemble.scoring.facts import facts_of
from ensemble.scoring.sections import score_split, values_of
from ensemble.storage.predictions import StoredPredictions
from ensemble.target_rows import joined

NUM = 400


def stored(seed, censored=False, error=0.0):
    """A right model of a Gaussian target, and targets of which some are bounded or measured."""
    rng = np.random.default_rng(seed)
    loc = rng.normal(0, 3, NUM).astype(np.float32)
    y, errors = loc + rng.normal(size=NUM), np.full(NUM, error, np.float32)
    columns = {"targets": (y + errors * rng.normal(size=NUM)).astype(np.float32)}
    if error:
        columns["target_errors"] = errors
    if censored:
        bounds = (rng.normal(1, 2, NUM) + loc / 2).astype(np.float32)
        columns["censored"] = columns["targets"] > bounds
        columns["targets"] = np.minimum(columns["targets"], bounds)
    arrays = {"loc": np.stack([loc, loc]), "scale": np.ones((2, NUM), np.float32)}
    return StoredPredictions(arrays, joined(columns), np.arange(2)), y


def view_of(likelihood, stored):
    return likelihood.view(stored.arrays, stored.targets)


@pytest.fixture(scope="module")
def likelihood():
    return of_data("gaussian", np.random.default_rng(0).normal(size=NUM), ())


def test_measured_targets_are_scored_as_they_were_measured(likelihood):
    test, _ = stored(0, error=2.0)
    view = view_of(likelihood, test)
    assert facts_of(view)["num_measured"] == NUM
    assert facts_of(view)["pit"]["p_value"] > 0.05
    assert abs(values_of(view)["coverage_90"] - 0.9) < 0.05
    plain = facts_of(view_of(likelihood, test._replace(targets=test.targets["targets"])))
    assert plain["pit"]["p_value"] < 1e-6  # As if all of the error were noise of the target.
    one = evaluated(view_of(likelihood, test), view_of(likelihood, stored(1, error=2.0)[0]))
    assert score_factor(one)["value"] == pytest.approx(1, abs=0.4)
    assert abs(score_conformal(one)["quantiles"]["coverage"] - 0.9) < 0.05


def test_coverage_of_censored_targets_is_bounded_and_estimated(likelihood):
    test, y = stored(0, censored=True)
    view = view_of(likelihood, test)
    section, facts = score_split(view), facts_of(view)
    num_censored = test.targets["censored"].sum()
    assert facts["num_censored"] == num_censored > 50
    held = np.mean(np.abs(y - test.arrays["loc"][0]) < 1.6449)
    low, high = facts["coverage_bounds"]["coverage_90"]
    assert low < held < high < low + num_censored / NUM
    assert section["scores"]["coverage_90"]["value"] == pytest.approx(held, abs=0.03)
    assert section["scores"]["coverage_90"]["interval"][0] < low
    assert facts["pit"]["p_value"] > 0.05
    assert view.known.pit.mean() < 0.45  # Targets that are known are lower than others like them.
    assert section["scores"]["nll"]["value"] == pytest.approx(values_of(view)["nll"])
    one = evaluated(view, view_of(likelihood, stored(1, censored=True)[0]))
    assert score_factor(one)["value"] == pytest.approx(1, abs=0.15)
    assert "censored" in score_conformal(one)["quantiles"]["reason"]
    assert calibration.coverage(section, facts).code in ("coverage.censored", "coverage.consistent")
    wide = test._replace(arrays={**test.arrays, "scale": 3 * test.arrays["scale"]})
    wide = view_of(likelihood, wide)
    assert calibration.coverage(score_split(wide), facts_of(wide)).code == "coverage.wrong_shape"


@pytest.mark.check
def test_runs_are_evaluated(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y, bounds = x[:, 0] + 0.3 * rng.normal(size=300), rng.normal(0.5, 1, 300)
    data = {"inputs": x, "targets": np.minimum(y, bounds), "censored": y > bounds}
    data["target_errors"] = np.full(300, 0.1)
    config = small_config(likelihood="gaussian", optimizer="adam", num_epochs=5)
    ensemble.train(config, data, str(tmp_path / "run"), show_progress=False)
    found = ensemble.evaluate(
        tmp_path / "run", compare=tmp_path / "run", data=data, show_progress=False
    )
    assert found["compare"][0]["scores"]["nll"]["difference"] == 0
    # The NLL is of all targets, coverage of none that are partly known.
    assert found["compare"][0]["scores"]["nll"]["value"] == found["test"]["scores"]["nll"]["value"]
    assert found["compare"][0]["scores"]["coverage_90"]["interval"] is None
    assert found["facts"]["num_measured"] == found["test"]["num_rows"]
    assert found["shift"]["noisy"]["scores"]["rmse"][0] == found["test"]["scores"]["rmse"]["value"]
    assert "RMSE" in repr(found)
    page = (tmp_path / "run" / "evaluation" / "report.html").read_text()
    assert re.search(r"at least -?\d", page)
    assert "Kaplan and Meier" in page
