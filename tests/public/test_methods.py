"""Every method is trained, reported, loaded, evaluated and exported, by what users see of it."""

import json

import jax.export
import numpy as np
import pytest
from runs import METHODS, classes

import ensemble


@pytest.fixture(
    scope="module",
    params=[
        name if name in ("sgd", "hmc") else pytest.param(name, marks=pytest.mark.check)
        for name in METHODS
    ],
)
def run(request, tmp_path_factory):
    """A workdir, what `ensemble.train` has returned, and the name of the method."""
    workdir = tmp_path_factory.mktemp(request.param) / "run"
    result = ensemble.train(
        METHODS[request.param], data=classes(), workdir=str(workdir), show_progress=False
    )
    return workdir, result, request.param


@pytest.mark.check
def test_what_is_loaded_predicts_what_was_trained(run):
    workdir, result, _ = run
    inputs = classes()["inputs"][:9]
    expected, found = result.predictor(inputs), ensemble.load(workdir)(inputs)
    np.testing.assert_allclose(found.probs, expected.probs, atol=1e-5)
    np.testing.assert_allclose(found.probs.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(found.label, found.probs.argmax(1))
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic, atol=1e-4)


def test_a_run_leaves_the_files_that_are_documented(run):
    workdir, result, method = run
    report = json.loads((workdir / "report.json").read_text())
    assert (
        report["method"]
        == method
        == json.loads((workdir / "config.json").read_text())["config"]["method"]
    )
    scores, returned = (one["test"]["scores"] for one in (report, result.report))
    assert scores["accuracy"]["value"] == pytest.approx(returned["accuracy"]["value"])
    assert scores["nll"]["value"] > 0
    steps = [
        json.loads(line)["step"] for line in (workdir / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == sorted(steps)
    with np.load(workdir / "predictions" / "test.npz") as predictions:
        assert "log_probs" in predictions


def test_it_learns(run):
    _, result, _ = run
    constant = np.bincount(classes()["labels"]).max() / len(classes()["labels"])
    assert result.report["test"]["scores"]["accuracy"]["value"] > constant + 0.1


def test_an_export_predicts_without_the_package_s_code(run, tmp_path):
    from programs import run_here

    workdir, _, _ = run
    out = tmp_path / "model.bin"
    done = run_here("ensemble.__main__", "export", f"--workdir={workdir}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    inputs = classes()["inputs"][:9]
    exported = jax.export.deserialize(bytearray(out.read_bytes())).call(inputs)
    np.testing.assert_allclose(exported["probs"], ensemble.load(workdir)(inputs).probs, atol=1e-4)


@pytest.mark.check
def test_it_is_evaluated(run, tmp_path):
    workdir, result, _ = run
    ensemble.evaluate(workdir, out=tmp_path / "out", datasets=(), show_progress=False)
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    accuracy = evaluation["test"]["scores"]["accuracy"]["value"]
    assert accuracy == pytest.approx(result.report["test"]["scores"]["accuracy"]["value"], abs=1e-6)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
