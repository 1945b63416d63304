"""Evaluations of runs that predict numbers, on real workdirs."""

import json
import re

import jax.export
import numpy as np
import pytest
from conftest import built_once, small_config
from markdown_pages import of_evaluations
from run_parts import subject_of

import ensemble
from ensemble import UserError
from ensemble.evaluation.summary import lines_of
from ensemble.evaluation.table_shift import TABLE_SHIFTS
from ensemble.export import export
from ensemble.scoring.sections import values_in
from ensemble.sources import dataset_from_arrays


def make_slopes(num_examples=403):
    """Rows of three columns: the first says most, and the second how much noise there is."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_examples, 3)) * [1, 2, 30] + [0, 0, 100]
    noise = 0.5 + 0.5 * np.abs(inputs[:, 1])
    targets = (
        10 * np.sin(inputs[:, 0]) + 0.05 * inputs[:, 2] + noise * rng.normal(size=num_examples)
    )
    return {"inputs": inputs.astype(np.float32), "targets": targets.astype(np.float32)}


@pytest.fixture(scope="module")
def slopes():
    return make_slopes()


def build(path, **overrides):
    rarely = {"log_every_steps": 100, "eval_every_epochs": 20}
    learning = {"optimizer": "adam", "learning_rate": 0.01, **rarely}
    config = small_config(likelihood="gaussian", **learning, **overrides)
    ensemble.train(config, make_slopes(), str(path), show_progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on the slopes; only to be read."""
    with built_once(tmp_path_factory, "slopes", lambda path: build(path, num_epochs=20)) as path:
        yield path


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    with built_once(tmp_path_factory, "longer", lambda path: build(path, num_epochs=60)) as path:
        yield path


@pytest.fixture(scope="module")
def evaluated(run, longer, slopes, tmp_path_factory):
    """An evaluation of the run beside a longer one, and its page."""
    out = tmp_path_factory.mktemp("evaluated")
    evaluation = ensemble.evaluate(run, out, compare=longer, data=slopes, show_progress=False)
    return evaluation, (out / "report.html").read_text(), out


@pytest.mark.check
def test_scores_are_those_of_the_report_and_have_intervals(evaluated, run):
    evaluation, _, out = evaluated
    test = evaluation["test"]
    report = json.loads((run / "report.json").read_text())["test"]
    assert json.loads(json.dumps(test)) == report
    for name, value in values_in(report).items():
        if test["scores"][name]["interval"] is None:  # Too few targets are missed; R² has none.
            assert name.startswith("interval_score") or name == "r2"
            continue
        low, high = test["scores"][name]["interval"]
        assert low <= value <= high
    stored = json.loads((out / "evaluation.json").read_text())
    assert stored == json.loads(json.dumps(evaluation))
    assert evaluation.keys() <= of_evaluations()
    assert sum(evaluation["facts"]["pit"]["counts"]) == test["num_rows"]


@pytest.mark.check
def test_a_constant_and_least_squares_are_scored_beside_it(evaluated, slopes):
    evaluation, _, _ = evaluated
    splits = dataset_from_arrays(slopes, "arrays", 0).splits
    (inputs, targets), (x, y) = splits["train"], splits["test"]
    design, others = (np.column_stack([np.ones(len(one)), one]) for one in (inputs, x))
    weights = np.linalg.lstsq(design, targets, rcond=None)[0]
    simple = evaluation["simple"]
    expected = np.sqrt(np.mean((others @ weights - y) ** 2))
    assert simple["least_squares"]["scores"]["rmse"]["value"] == pytest.approx(expected, rel=1e-5)
    expected = np.sqrt(np.mean((targets.mean() - y) ** 2))
    assert simple["constant"]["scores"]["rmse"]["value"] == pytest.approx(expected, rel=1e-5)
    low, high = simple["constant"]["excess_interval"]["rmse"]
    assert low < expected - evaluation["test"]["scores"]["rmse"]["value"] < high
    (found,) = (one for one in evaluation["findings"] if one["code"].startswith("baseline."))
    assert found["numbers"]["linear"] == simple["least_squares"]["scores"]["rmse"]["value"]
    assert "linear regression" in repr(evaluation)


@pytest.mark.check
def test_shifts_of_the_table_and_made_rows_are_predicted(evaluated):
    evaluation, _, _ = evaluated
    shifts = evaluation["shift"]
    assert shifts.keys() == TABLE_SHIFTS.keys()
    for section in shifts.values():
        assert section["scores"]["rmse"][0] == evaluation["test"]["scores"]["rmse"]["value"]
        assert len(section["scores"]["coverage_90"]) == 6
    assert shifts["beyond"]["scores"]["rmse"][5] > shifts["beyond"]["scores"]["rmse"][0]
    detections = evaluation["out_of_distribution"]
    assert list(detections) == ["box", "outside"]
    assert detections["outside"]["epistemic"]["auroc"] > 0.8
    beyond = evaluation["beyond"]
    total = beyond["within"]["num_rows"] + beyond["beyond"]["num_rows"]
    assert total == evaluation["test"]["num_rows"]


@pytest.mark.check
def test_runs_are_compared_in_pairs(evaluated, run):
    evaluation, _, _ = evaluated
    (other,) = evaluation["compare"]
    for name in ("rmse", "nll", "crps"):
        difference = other["scores"][name]["value"] - evaluation["test"]["scores"][name]["value"]
        assert other["scores"][name]["difference"] == pytest.approx(difference)
        low, high = other["scores"][name]["interval"]
        assert low < difference < high
    for name, score in (("recipe", "crps"), ("recipe_by_nll", "nll")):
        assert other[name]["score"].lower() == score
        assert other[name]["difference"] == pytest.approx(other["scores"][score]["difference"])
    assert other["distance"] > 0
    assert 0 < other["overlap"] <= 1


@pytest.mark.check
def test_the_page_has_every_picture_and_says_what_is_found(evaluated):
    evaluation, page, _ = evaluated
    found = set(re.findall(r'<figure id="figure-(\w+)"', page))
    assert found == {
        "predictions", "fan", "calibration", "uncertainty", "shift", "disagreement", "roc",
        "sizes", "training",
    }  # fmt: skip
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", page))
    for sentence in lines_of(evaluation):
        assert sentence.replace("'", "&#39;") in text
    tables = re.findall(r'<table id="([\w-]+)"', page)
    assert tables == [
        "scores", "compare", "conformal", "least-certain", "abstention", "shift",
        "out-of-distribution", "sizes",
    ]  # fmt: skip


@pytest.mark.check
def test_the_least_certain_examples_have_the_widest_predictions(evaluated, run):
    evaluation, _, _ = evaluated
    subject = subject_of(run)
    deviation = subject.likelihood.distribution(subject.test.arrays).moments()
    total = deviation[1] + deviation[2]
    listed = [one["index"] for one in evaluation["least_certain"]]
    assert listed == np.argsort(-total)[:10].tolist()
    assert len(evaluation["least_certain"][0]["inputs"]) == 3


@pytest.mark.check
def test_abstention_is_by_the_width_and_the_predictor_abstains_alike(evaluated, run, slopes):
    evaluation, _, _ = evaluated
    (section,) = [one for one in evaluation["abstention"] if one["rule"] == "coverage=0.5"]
    x, y = dataset_from_arrays(slopes, "arrays", 0).splits["test"]
    predictor = ensemble.load(run, abstain="coverage=0.5")
    p = predictor(x)
    low, median, high = (p.quantiles[:, list(p.levels).index(q)] for q in (0.05, 0.5, 0.95))
    np.testing.assert_array_equal(p.accepted, high - low < section["max_width"])
    test = section["test"]
    assert test["num_accepted"] == p.accepted.sum() > 0
    assert test["num_errors"] == (np.abs(median - y)[p.accepted] > section["tolerance"]).sum()
    assert test["scores"]["rmse"]["value"] == pytest.approx(
        np.sqrt(((p.mean - y) ** 2)[p.accepted].mean()), rel=1e-4
    )


@pytest.mark.check
def test_a_calibrated_predictor_is_as_wide_times_the_factor_and_so_is_its_export(evaluated, run):
    evaluation, _, _ = evaluated
    factor = evaluation["calibrated"]["value"]
    plain = ensemble.load(run)
    calibrated = ensemble.load(run, calibrated=True, abstain="coverage=0.5")
    assert calibrated.temperature == factor != 1
    x = make_slopes(7)["inputs"]
    before, after = plain(x), calibrated(x)
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-5)
    np.testing.assert_allclose(
        after.standard_deviation, factor * before.standard_deviation, rtol=1e-5
    )
    moved = before.mean[:, None] + factor * (before.quantiles - before.mean[:, None])
    np.testing.assert_allclose(after.quantiles, moved, rtol=1e-4)
    exported = jax.export.deserialize(bytearray(export(calibrated))).call(x)
    np.testing.assert_allclose(exported["quantiles"], after.quantiles, rtol=2e-3, atol=1e-3)
    np.testing.assert_array_equal(exported["accepted"], after.accepted)
    # Rows of the members' means are functions: the same member everywhere.
    np.testing.assert_allclose(before.member_means, before.members["loc"], rtol=1e-6)


@pytest.mark.check
def test_a_second_evaluation_needs_no_network_and_says_the_same(
    evaluated, run, longer, slopes, monkeypatch
):
    evaluation, _, out = evaluated
    monkeypatch.setattr("ensemble.predictor.restore", lambda _: pytest.fail("it was loaded"))
    again = ensemble.evaluate(run, out, compare=longer, data=slopes, show_progress=False)
    for key in evaluation.keys() - {"environment"}:
        assert again[key] == evaluation[key], key


@pytest.mark.check
def test_without_its_data_a_run_is_scored_from_what_is_stored(run, tmp_path):
    evaluation = ensemble.evaluate(run, tmp_path, show_progress=False)
    assert evaluation["shift"] == evaluation["out_of_distribution"] == {}
    assert "reason" in evaluation["simple"]["least_squares"]
    assert evaluation["conformal"]["distance"]["coverage"] > 0


@pytest.mark.check
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"exact_sets": True}, "exact_sets is for sets of classes"),
        ({"abstain": "max_error=0.1@-2"}, "off by more than 5"),
        ({"datasets": ["uniformm"]}, "--datasets=uniformm"),
    ],
)
def test_what_is_not_for_numbers_is_one_line(run, slopes, tmp_path, arguments, line):
    with pytest.raises(UserError, match=line) as error:
        ensemble.evaluate(run, tmp_path / "out", data=slopes, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.check
def test_numbers_and_classes_are_not_compared(run, blobs_run, tmp_path):
    with pytest.raises(UserError, match="classes with classes"):
        ensemble.evaluate(run, tmp_path, [], compare=blobs_run)
    with pytest.raises(UserError, match="has a tolerance, which is for numbers"):
        ensemble.evaluate(blobs_run, tmp_path / "out", [], abstain="max_error=0.1@2")


@pytest.mark.soak
def test_chains_are_scored_by_their_draws_and_stand_beside_their_start(slopes, run, tmp_path):
    hmc = {"num_warmup": 30, "num_samples": 20, "num_leapfrog_steps": 8}
    config = {"model": "tiny", "likelihood": "gaussian", "method": "hmc", "num_chains": 4}
    config |= {"sampler": hmc, "num_devices": 2, "init_from": str(run)}
    ensemble.train(config, slopes, str(tmp_path / "run"), show_progress=False)
    evaluation = ensemble.evaluate(tmp_path / "run", data=slopes, show_progress=False)
    assert evaluation["calibrated"]["value"] > 0
    assert evaluation["posterior"]["num_chains"] == 4
    (start,) = evaluation["compare"]
    assert start["workdir"] == str(run)
    found, mean = start["recipe_by_nll"], start["scores"]["nll"]["difference"]
    assert found["over"] == "members or chains and examples"
    assert found["difference"] == pytest.approx(mean, rel=1e-6)
    (found,) = (one for one in evaluation["findings"] if one["code"].startswith("start."))
    assert found["text"] in (tmp_path / "run/evaluation/report.html").read_text()
    plain = evaluation["shift"]["noisy"]["scores"]["rmse"][0]
    assert plain == pytest.approx(evaluation["test"]["scores"]["rmse"]["value"], rel=0.1)
    assert evaluation["out_of_distribution"]["outside"]["epistemic"]["auroc"] > 0.5


@pytest.mark.check
def test_an_nll_of_counts_is_beside_none_of_densities(tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 2)).astype(np.float32)
    data = {"inputs": inputs, "targets": rng.poisson(np.exp(1 + inputs[:, 0] / 2)).astype(float)}
    runs = [tmp_path / name for name in ("poisson", "gaussian")]
    for run in runs:
        config = {"model": "tiny", "num_epochs": 1, "ensemble_size": 1, "likelihood": run.name}
        ensemble.train(config, data, str(run), show_progress=False)
    found = ensemble.evaluate(runs[0], data=data, datasets="none", compare=runs[1])
    (other,) = found["compare"]
    assert "rmse" in values_in(other, "difference")
    assert "nll" not in values_in(other, "difference")
    assert "rmse" in values_in(found["simple"]["constant"])
    assert "nll" not in values_in(found["simple"]["constant"])
