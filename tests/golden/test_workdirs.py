"""Workdirs of every format that there was: this version loads and evaluates them.

`python tests/golden/test_workdirs.py` makes those of today's format, once; they stay for ever.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import record

import ensemble
from ensemble.config import FORMAT
from ensemble.config_rules import validate

pytestmark = pytest.mark.check

WORKDIRS = HERE / "workdirs"
ARCHIVES = sorted(WORKDIRS.glob("*/*.zip"))
EXPECTED = "golden.json"
"""A file beside what the run has written: what its predictor said of `some_inputs`."""


def some_inputs(name):
    """A few inputs that a run's predictor is asked about."""
    if name == "factorisation":
        return np.array([[0, 0], [3, 16], [40, 5]], np.int32)
    return record.data(name)["inputs"][:5]


def archives(*names):
    chosen = [archive for archive in ARCHIVES if archive.stem in names]
    ids = [f"format {archive.parent.name} {archive.stem}" for archive in chosen]
    return pytest.mark.parametrize("archive", chosen, ids=ids)


@pytest.fixture
def work(archive, tmp_path):
    shutil.unpack_archive(archive, tmp_path / "run")
    return tmp_path / "run"


def read(path):
    return json.loads(path.read_text())


def test_every_method_has_one_of_every_format():
    for number in range(1, FORMAT + 1):
        kept = {archive.stem for archive in ARCHIVES if archive.parent.name == str(number)}
        assert kept == set(record.WORKDIRS)


@archives("sgd", "hmc", "nuts", "mclmc", "factorisation")
def test_it_predicts_as_it_did(work, archive):
    prediction = ensemble.load(work)(some_inputs(archive.stem))
    expected = read(work / EXPECTED)
    np.testing.assert_allclose(prediction.probs, expected["probs"], atol=1e-5)
    np.testing.assert_allclose(prediction.epistemic, expected["epistemic"], atol=1e-4)


@archives("sgd", "hmc", "nuts", "mclmc")
def test_its_evaluation_has_the_scores_of_its_report(work, archive, tmp_path):
    found = ensemble.evaluate(work, tmp_path / "out", datasets=(), data=record.data(archive.stem))
    expected = read(work / "report.json")["test"]
    for name in ("accuracy", "nll", "brier", "ece"):
        assert found["test"]["ensemble"][name] == pytest.approx(expected["ensemble"][name])
        assert found["test"]["members"][name] == pytest.approx(expected["members"][name])


@archives("factorisation", "rwm")
def test_what_is_no_classifier_is_not_evaluated(work, tmp_path):
    with pytest.raises(ensemble.UserError, match=r"report\.json"):
        ensemble.evaluate(work, tmp_path / "out")


@archives("rwm")
def test_its_moments_are_those_of_its_report(work, archive):
    """A finished run that is asked for no more reads its checkpoint and writes its report anew."""
    expected = read(work / "report.json")["posterior"]
    config = record.WORKDIRS[archive.stem]
    found = ensemble.train(config, workdir=str(work), show_progress=False).report["posterior"]
    for name in ("mean", "variance", "num_total_samples"):
        assert found[name] == pytest.approx(expected[name])


LONGER = {
    "sgd": {"num_steps": 70},
    "hmc": {"hmc.num_samples": 75},
    "factorisation": {"hmc.num_samples": 30},
    "rwm": {"rwm.num_samples": 100},
}


@archives(*LONGER)
def test_it_goes_on_and_has_its_own_keys_from_then_on(work, archive):
    """Those of format 1 were first written with the keys of every method."""
    name = archive.stem
    config = {**record.WORKDIRS[name], **LONGER[name]}
    report = ensemble.train(
        config, record.data(name), workdir=str(work), show_progress=False
    ).report
    found = read(work / "config.json")["config"]
    assert found == report["config"] == validate(config).to_dict()
    assert ("hmc" in found) == (report["method"] == "hmc")


def make(name, folder):
    """Trains one of `record.WORKDIRS` and packs what a reader needs of it."""
    work, data = folder / name, record.data(name)
    result = ensemble.train(record.WORKDIRS[name], data, workdir=str(work), show_progress=False)
    if result.predictor is not None:
        said = ensemble.load(work)(some_inputs(name))
        expected = {"probs": said.probs.tolist(), "epistemic": said.epistemic.tolist()}
        (work / EXPECTED).write_text(json.dumps(expected))
    shutil.rmtree(work / "plots")
    for unread in [*work.glob("**/*.tfevents.*"), *work.glob("posterior.nc")]:
        unread.unlink()
    target = WORKDIRS / str(FORMAT)
    target.mkdir(parents=True, exist_ok=True)
    shutil.make_archive(str(target / name), "zip", work)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for each in record.WORKDIRS:
            make(each, pathlib.Path(scratch))
