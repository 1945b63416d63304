"""Evaluations of quantiles: pinball loss, bands, and what makes these hold as often as they say."""

import numpy as np
import pytest
import scipy.special
from conftest import small_config
from markdown_pages import of_evaluations
from run_parts import evaluated

import ensemble
from ensemble import UserError
from ensemble.evaluation.sections import score_conformal
from ensemble.likelihoods.quantiles import QUANTILES, Quantiles
from ensemble.scoring.facts import facts_of
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import score_split, values_in

NUM = 500
LEVELS = tuple(np.round(np.arange(0.01, 1, 0.01), 2).tolist())


def stored(seed, width=1.0):
    """Quantiles of a normal distribution, too wide by a factor, and its draws."""
    rng = np.random.default_rng(seed)
    loc = rng.normal(size=NUM)
    z = width * scipy.special.ndtri(LEVELS)
    members = loc[:, None] + z + rng.normal(0, 0.01, (2, NUM, 1))
    arrays = {QUANTILES: members.astype(np.float32)}
    return Quantiles(0.0, 1.0, -3.0, 3.0, LEVELS).view(arrays, loc + rng.normal(size=NUM))


def test_quantiles_that_are_right_are_found_right_and_tell_the_crps():
    test = stored(0)
    section, levels = score_split(test), facts_of(test)["levels"]
    inside = [one["interval"][0] <= one["level"] <= one["interval"][1] for one in levels]
    assert np.mean(inside) > 0.9
    low, high = section["scores"]["coverage_90"]["interval"]
    assert low < 0.9 < high
    z = (test.targets - test.median)[:, None]
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    crps = z * (2 * scipy.special.ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi)
    assert section["scores"]["crps"]["value"] == pytest.approx(crps.mean(), rel=0.01)


def test_conformalised_bands_hold_what_they_say():
    section = score_conformal(evaluated(stored(0, 0.5), stored(1, 0.5)))["90"]
    low, high = section["coverage_range"]
    assert low <= section["coverage"] <= high
    assert section["threshold"] > 0.3
    few = stored(1).rows(np.arange(20))
    refused = score_conformal(evaluated(stored(0), few))["98"]
    assert "20 calibration examples, and it takes 49" in refused["reason"]


@pytest.mark.check
def test_runs_are_evaluated(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    data = {"inputs": x, "targets": x[:, 0] + 0.3 * rng.normal(size=300)}
    config = small_config(likelihood="quantiles", optimizer="adam", num_epochs=2)
    run = ensemble.train(config, data, str(tmp_path / "run"), show_progress=False)
    found = ensemble.evaluate(
        tmp_path / "run", compare=tmp_path / "run", data=data, show_progress=False
    )
    for name, value in values_in(run.report["test"]).items():
        assert found["test"]["scores"][name]["value"] == pytest.approx(value, rel=1e-12)
    assert found.keys() <= of_evaluations()
    assert found["compare"][0]["scores"]["pinball"]["difference"] == 0
    assert found["shift"]["noisy"]["scores"]["pinball"][0] == pytest.approx(
        found["test"]["scores"]["pinball"]["value"]
    )
    assert found["simple"]["least_squares"]["excess_interval"]["pinball"][0] < 0.1
    assert "pinball" in repr(found)
    codes = [one["code"] for one in found["findings"]]
    assert codes[0] == "quality.pinball"
    assert codes[-1] == "next_member.none"
    assert 'id="levels"' in (tmp_path / "run" / "evaluation" / "report.html").read_text()
    with pytest.raises(UserError, match="no threshold of abstention"):
        ensemble.evaluate(tmp_path / "run", data=data, abstain="coverage=0.9")


def test_bands_are_doubted_together():
    test, scores = stored(0), scores_of(stored(0))
    together = facts_of(test)["together"]
    for name, (low, high) in together.items():
        alone = scores[name].interval(test)
        assert low <= alone[0] <= alone[1] <= high, name
        assert low < alone[0] or high > alone[1], name
    few = np.repeat(["a", "b"], NUM // 2)
    assert set(facts_of(test, few)["together"].values()) == {None}
