"""Every likelihood is learned, loaded, evaluated and exported, by what users see of it."""

import json

import jax.export
import numpy as np
import pytest
from programs import run_here
from runs import LIKELIHOODS, MEMBERS, METHODS

import ensemble


@pytest.fixture(
    scope="module",
    params=[
        name if name == "gaussian" else pytest.param(name, marks=pytest.mark.check)
        for name in LIKELIHOODS
    ],
)
def run(request, tmp_path_factory):
    """A workdir, what `ensemble.train` has returned, and the data."""
    workdir, data = tmp_path_factory.mktemp(request.param) / "run", LIKELIHOODS[request.param]()
    config = {
        **MEMBERS,
        "likelihood": request.param,
        "optimizer": "adam",
        "learning_rate": 0.03,
        "num_epochs": 20,
    }
    result = ensemble.train(config, data=data, workdir=str(workdir), show_progress=False)
    return workdir, result, data


@pytest.mark.check
def test_what_is_loaded_predicts_what_was_trained(run):
    workdir, result, data = run
    inputs = data["inputs"][:9]
    expected, found = result.predictor(inputs), ensemble.load(workdir)(inputs)
    if "labels" in data:
        np.testing.assert_allclose(found.probs, expected.probs, atol=1e-5)
        return
    np.testing.assert_allclose(found.quantiles, expected.quantiles, rtol=1e-4, atol=1e-4)
    assert (np.diff(found.quantiles, axis=1) >= 0).all()
    assert found.quantiles.shape == (9, len(found.levels))


@pytest.mark.check
def test_it_beats_a_constant(run):
    _, result, data = run
    scores = {name: one["value"] for name, one in result.report["test"]["scores"].items()}
    if "labels" in data:
        assert scores["accuracy"] > np.bincount(data["labels"]).max() / len(data["labels"]) + 0.1
    elif "rmse" in scores:
        assert scores["rmse"] < 0.9 * np.std(data["targets"])
    else:
        levels = np.array(result.report["config"]["quantiles"]["levels"].split(","), float)
        errors = data["targets"][:, None] - np.quantile(data["targets"], levels)
        constant = np.maximum(levels * errors, (levels - 1) * errors).mean()
        assert scores["pinball"] < 0.9 * constant


@pytest.mark.check
def test_an_export_predicts_the_same(run, tmp_path):
    workdir, _, data = run
    out = tmp_path / "model.bin"
    done = run_here("ensemble.__main__", "export", f"--workdir={workdir}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    inputs = data["inputs"][:9]
    exported = jax.export.deserialize(bytearray(out.read_bytes())).call(inputs)
    expected, name = ensemble.load(workdir)(inputs), "probs" if "labels" in data else "quantiles"
    np.testing.assert_allclose(exported[name], getattr(expected, name), rtol=1e-3, atol=1e-3)


@pytest.mark.check
@pytest.mark.parametrize("likelihood", [name for name in LIKELIHOODS if name != "quantiles"])
def test_a_posterior_is_sampled_by_it(likelihood, tmp_path):
    data = LIKELIHOODS[likelihood]()
    config = {**METHODS["hmc"], "likelihood": likelihood, "num_chains": 1, "num_devices": 1}
    result = ensemble.train(config, data, str(tmp_path / "run"), show_progress=False)
    assert np.isfinite(result.report["test"]["scores"]["nll"]["value"])
    found = ensemble.load(tmp_path / "run")(data["inputs"][:7])
    name = "probs" if "labels" in data else "quantiles"
    np.testing.assert_allclose(
        getattr(found, name), getattr(result.predictor(data["inputs"][:7]), name), rtol=1e-3
    )


@pytest.mark.check
def test_it_is_evaluated(run, tmp_path):
    workdir, result, _ = run
    ensemble.evaluate(workdir, out=tmp_path / "out", datasets=(), show_progress=False)
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())["test"]["scores"]
    expected = result.report["test"]["scores"]
    names = {"nll", "pinball"} & expected.keys() & found.keys()
    assert names
    for name in names:
        assert found[name]["value"] == pytest.approx(expected[name]["value"], rel=1e-4)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
