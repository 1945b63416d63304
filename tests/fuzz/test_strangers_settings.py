"""Settings and workdirs of strangers: what is wrong in them is named in one line."""

import shutil

import numpy as np
import pytest
from strangers import MARKS, check, learn, score, vectors

import ensemble

pytestmark = MARKS

# fmt: off
SETTINGS = [
    ({"optimizer": "sgd", "learning_rate": 1e4}, "diverge|finite"),
    ({"learning_rate": 1e-9}, "always answering|learning rate"),
    ({"learning_rate": -0.1}, "learning_rate=-"),
    ({"learningrate": 0.1}, "learningrate"),
    ({"epochs": 10}, "epochs"),
    ({"method": "hcm"}, "hcm.*hmc"),
    ({"optimizer": "Adam"}, "Adam"),
    ({"num_epochs": "ten"}, "num_epochs"),
    ({"num_epochs": 2.5}, "num_epochs"),
    ({"num_epochs": 0}, "num_epochs"),
    ({"num_steps": 10}, "num_steps"),
    ({"ensemble_size": 0}, "ensemble_size"),
    ({"batch_size": 5000}, ""),
    ({"batch_size": 1, "num_epochs": 3}, ""),
    ({"num_epochs": np.int64(20), "learning_rate": np.float32(5e-3)}, ""),
    ({"num_devices": 64}, "num_devices"),
    ({"sampler.num_samples": 10}, "sampler.num_samples"),
    ({"model": "cnn"}, "cnn|image"),
    ({"model": "resnet50"}, "resnet50.*(mlp|known)"),
    ({"likelihood": "gaussian"}, "likelihood|labels|targets"),
    ({"likelihood": "bernoulli"}, "bernoulli|classes"),
    ({"likelihood": "softmax"}, "softmax.*categorical"),
    ({"class_weights": "1,2"}, "class_weights|weights"),
    ({"augment.shift": 2}, "augment|shift|image"),
    ({"hold_out": False}, ""),
    ({"mlp.widths": [32, 16]}, "text: '32,16'"),
    ({"weight_decay": 100.0}, "always answering|weight_decay"),
]
HMC = {
    "method": "hmc", "model": "logistic_regression", "num_chains": 2, "sampler.num_warmup": 60,
    "sampler.num_samples": 60,
}
SAMPLED = [
    ({}, "chains|R-hat|ESS|converge"),
    ({"sampler.num_samples": 5, "sampler.num_warmup": 0}, "chains|R-hat|ESS|draws"),
    ({"learning_rate": 0.1}, "learning_rate"),
    ({"sampler.step_size": 1e3, "sampler.num_warmup": 0}, "chains|accept|diverg|R-hat"),
    ({"prior": "gauss(1)"}, "prior"),
]
RESUMED = [
    ({"num_epochs": 10}, ""),
    ({"num_epochs": 10, "ensemble_size": 3}, ""),
    ({"num_epochs": 10, "ensemble_size": 1}, "ensemble_size"),
    ({"num_epochs": 10, "learning_rate": 1e-2}, "learning_rate"),
    ({"num_epochs": 10, "model": "logistic_regression"}, "model"),
]
PREDICTED = {
    "other inputs": (lambda x: x[:, :3], r"\(200, 3\)|\[N, 5\]|3"),
    "one example without its axis": (lambda x: x[0], r"\(5,\)|shape"),
    "a NaN": (lambda x: np.full((1, 5), np.nan), "nan|finite"),
    "a list": (lambda x: x.tolist(), ""),
    "nothing": (lambda x: x[:0], "N > 0"),
}
# fmt: on


@pytest.mark.parametrize(
    ("config", "says"), SETTINGS + [(HMC | config, says) for config, says in SAMPLED], ids=str
)
def test_settings(config, says):
    data = dict(zip(("inputs", "labels"), vectors(0), strict=True))
    check(lambda: learn(data, *vectors(1), config), says)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A workdir, only to be read."""
    path = tmp_path_factory.mktemp("strangers") / "run"
    learn(vectors(0), *vectors(1), {"num_epochs": 10}, str(path))
    return path


@pytest.fixture
def own(finished, tmp_path):
    """A workdir to do anything with."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize(("config", "says"), RESUMED, ids=str)
def test_a_run_that_goes_on(config, says, own):
    check(lambda: learn(vectors(0), *vectors(1), config, str(own)), says)


@pytest.mark.parametrize("case", PREDICTED)
def test_inputs_to_predict(case, finished):
    change, says = PREDICTED[case]
    new, truth = vectors(1)
    check(lambda: score(ensemble.load(finished)(change(new)), truth), says)


def test_damaged_workdirs(own, tmp_path):
    check(lambda: ensemble.load(tmp_path / "nowhere"), "nowhere")
    check(lambda: ensemble.load(tmp_path), "workdir|no run|checkpoint|config.json")
    for file in (own / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    check(lambda: ensemble.load(own), "checkpoint|damaged")
    shutil.rmtree(own / "checkpoints")
    check(lambda: ensemble.load(own), "checkpoint")
    config = own / "config.json"
    config.write_text(config.read_text().replace('"learning_rate": 0.005', '"learning_rate": "x"'))
    check(lambda: learn(vectors(0), *vectors(1), {"num_epochs": 10}, str(own)), "config.json")
    (tmp_path / "notes").write_text("notes")
    path = str(tmp_path / "notes")
    check(lambda: learn(vectors(0), *vectors(1), {"num_epochs": 2}, path), "file|folder|directory")


def test_evaluations(own):
    def evaluated(**options):
        test = ensemble.evaluate(own, show_progress=False, **options)["test"]
        return test["scores"]["accuracy"]["value"], 0.5

    check(evaluated)
    check(lambda: evaluated(data=vectors(0)))
    check(lambda: evaluated(data=vectors(3)), "data")
    check(lambda: evaluated(datasets=["svhn"]), "svhn")
    check(lambda: ensemble.load(own, abstain="max_error=0.01"), "prove|299|examples")
    check(lambda: ensemble.load(own, abstain="0.01"), "max_error=E")
