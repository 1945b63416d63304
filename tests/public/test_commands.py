"""Every program in processes of its own, one after another, as a user has them; small runs."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

import ensemble

pytestmark = pytest.mark.check


def run(*command):
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


def train(config, workdir, *overrides):
    overrides = [f"--config.{override}" for override in overrides]
    return run("train.py", f"--config=configs/{config}", f"--workdir={workdir}", *overrides)


SMALL = ["num_epochs=2", "model=mlp", "batching=shared"]  # It compiles faster than the CNN.


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The README's ensemble, smaller, and enlarged by a member."""
    workdir = tmp_path_factory.mktemp("digits") / "run"
    for size in (2, 3):
        done = train("digits_ensemble.py", workdir, *SMALL, f"ensemble_size={size}")
        assert f"The ensemble of {size} is right on" in done.stdout
    return workdir


@pytest.fixture(scope="module")
def posterior(tmp_path_factory):
    """The posterior of a regression, resumed with more draws."""
    workdir = tmp_path_factory.mktemp("logreg") / "run"
    short = ["sampler.num_warmup=40", "sampler.num_leapfrog_steps=4", "num_chains=2"]
    train("digits_logreg_hmc.py", workdir, *short, "sampler.num_samples=20")
    done = train("digits_logreg_hmc.py", workdir, *short, "sampler.num_samples=40")
    assert "Resuming" in done.stderr
    return workdir


def test_an_ensemble_is_evaluated_beside_a_posterior(digits, posterior):
    done = run("evaluate.py", f"--workdir={digits}", f"--compare={posterior}", "--datasets=none")
    assert "The ensemble of 3 is right on" in done.stdout
    evaluation = json.loads((digits / "evaluation" / "evaluation.json").read_text())
    assert evaluation["members"] == [0, 1, 2]
    assert [other["workdir"] for other in evaluation["compare"]] == [str(posterior)]


def test_an_ensemble_predicts(digits, tmp_path):
    inputs = np.random.default_rng(0).integers(0, 17, (5, 8, 8, 1)).astype(np.uint8)
    np.savez(tmp_path / "new.npz", inputs=inputs)
    flags = [f"--workdir={digits}", tmp_path / "new.npz", "--calibrated", "--json"]
    document = json.loads(run("predict.py", *flags).stdout)
    expected = ensemble.load(digits, calibrated=True)(inputs)
    for found in document["predictions"]:
        np.testing.assert_allclose(found["probs"], expected.probs[int(found["input"])], atol=1e-4)


@pytest.mark.parametrize("kind", ["digits", "posterior"])
def test_both_are_exported(kind, tmp_path, request):
    workdir, out = request.getfixturevalue(kind), tmp_path / "model.bin"
    done = run("-m", "ensemble", "export", f"--workdir={workdir}", f"--out={out}")
    assert done.stdout.startswith(f"{out}: ")
    assert out.stat().st_size > 10_000


@pytest.mark.soak
def test_mnist_takes_some_steps(tmp_path):
    data_dir = pathlib.Path(
        os.environ.get("TFDS_DATA_DIR") or ROOT / "../shared/tensorflow_datasets"
    )
    if not (data_dir / "mnist").exists():
        pytest.skip(f"there is no {data_dir}/mnist: real MNIST was NOT trained on")
    few = [
        "num_epochs=0",
        "num_steps=8",
        "ensemble_size=1",
        "batch_size=64",
        f"data_dir={data_dir}",
    ]
    train("mnist_ensemble.py:small", tmp_path, *few)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["dataset"]["num_examples"]["test"] == 10_000
    assert report["test"]["scores"]["accuracy"]["value"] > 0.1
