"""Evaluations of quantiles: pinball loss, bands, and what makes these hold as often as they say."""

import numpy as np
import pytest
import scipy.special
from conftest import small_config
from markdown_pages import of_evaluations
from run_parts import strata_of

import ensemble
from ensemble import UserError, metrics
from ensemble.evaluation.quantiles import quantile_scores
from ensemble.likelihoods.quantiles import QUANTILES, Quantiles
from ensemble.storage.predictions import StoredPredictions

NUM = 500
LEVELS = tuple(np.round(np.arange(0.01, 1, 0.01), 2).tolist())


def stored(seed, width=1.0):
    """Quantiles of a normal distribution, too wide by a factor, and its draws."""
    rng = np.random.default_rng(seed)
    loc = rng.normal(size=NUM)
    z = width * scipy.special.ndtri(LEVELS)
    members = loc[:, None] + z + rng.normal(0, 0.01, (2, NUM, 1))
    arrays = {QUANTILES: members.astype(np.float32)}
    return StoredPredictions(arrays, loc + rng.normal(size=NUM), np.arange(2))


@pytest.fixture(scope="module")
def likelihood():
    return Quantiles(0.0, 1.0, -3.0, 3.0, LEVELS)


def test_quantiles_that_are_right_are_found_right_and_tell_the_crps(likelihood):
    test = stored(0)
    section = quantile_scores.score_predictions(likelihood, test)
    inside = [one["interval"][0] <= one["level"] <= one["interval"][1] for one in section["levels"]]
    assert np.mean(inside) > 0.9
    low, high = section["interval"]["coverage_90"]
    assert low < 0.9 < high
    mean = test.arrays[QUANTILES].mean(axis=0)
    z = (test.targets - likelihood.medians(mean))[:, None]
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    crps = z * (2 * scipy.special.ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi)
    assert section["ensemble"]["crps"] == pytest.approx(crps.mean(), rel=0.01)


def test_conformalised_bands_hold_what_they_say(likelihood):
    found = quantile_scores.score_conformal(likelihood, stored(0, 0.5), stored(1, 0.5), None)
    section = found["90"]
    low, high = section["coverage_range"]
    assert low <= section["coverage"] <= high
    assert section["threshold"] > 0.3
    whole = stored(1)
    few = whole._replace(arrays={QUANTILES: whole.arrays[QUANTILES][:, :20]})
    few = few._replace(targets=whole.targets[:20])
    refused = quantile_scores.score_conformal(likelihood, stored(0), few, None)["98"]
    assert "20 calibration examples, and it takes 49" in refused["reason"]


def test_runs_are_evaluated(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    data = {"inputs": x, "targets": x[:, 0] + 0.3 * rng.normal(size=300)}
    config = small_config(likelihood="quantiles", optimizer="adam", num_epochs=2)
    run = ensemble.train(config, data, str(tmp_path / "run"), show_progress=False)
    found = ensemble.evaluate(
        tmp_path / "run", compare=tmp_path / "run", data=data, show_progress=False
    )
    for name, value in run.report["test"]["ensemble"].items():
        assert found["test"]["ensemble"][name] == pytest.approx(value, rel=1e-12)
    assert found.keys() <= of_evaluations()
    assert found["compare"][0]["difference"]["pinball"] == 0
    assert found["shift"]["noisy"]["ensemble"]["pinball"][0] == pytest.approx(
        found["test"]["ensemble"]["pinball"]
    )
    assert found["simple"]["least_squares"]["excess_interval"]["pinball"][0] < 0.1
    assert "pinball" in repr(found)
    assert "no NLL" in found["verdict"][0]
    assert 'id="levels"' in (tmp_path / "run" / "evaluation" / "report.html").read_text()
    with pytest.raises(UserError, match="no threshold of abstention"):
        ensemble.evaluate(tmp_path / "run", data=data, abstain="coverage=0.9")


def test_bands_are_doubted_together():
    held = {f"coverage_{name}": np.arange(200) < 172 for name in ("50", "90", "95")}
    together = quantile_scores.together(held)
    for name, (low, high) in together.items():
        alone = metrics.error_interval(172, 200)
        assert low < alone[0] < alone[1] < high, name
    few = strata_of(np.repeat(["a", "b"], 100))
    assert set(quantile_scores.together(held, few).values()) == {None}
