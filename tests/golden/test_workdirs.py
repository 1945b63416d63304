"""Workdirs that each release wrote: this version loads, evaluates and goes on with them.

`python tests/golden/test_workdirs.py` adds those of the version in pyproject.toml. It refuses if
they are there, so those of older versions stay as their releases wrote them.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import tomllib

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

import record
from applications import examples
from run_parts import validated
from section_paths import in_version_2
from test_stated_numbers import numbers_of

import ensemble

pytestmark = pytest.mark.check

WORKDIRS = HERE / "workdirs"
FIRST = "before_1.0.0"
RELEASED = ("sgd", "regression", "hmc")
"""What each release adds. Before the first one there were all others of `record.WORKDIRS` too."""

OF_APPLICATIONS = sorted(HERE.parent.glob("*/workdirs"))
"""Folders as `WORKDIRS`, which is one of them."""
ARCHIVES = sorted(one for folder in OF_APPLICATIONS for one in folder.glob("*/*.zip"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
EXPECTED = "golden.json"
"""A file beside what the run has written: what its predictor said of `some_inputs`."""


def some_inputs(name):
    """A few inputs that a run's predictor is asked about."""
    own = examples("INPUTS")
    return own[name] if name in own else record.data(name)["inputs"][:5]


def archives(*names):
    chosen = [archive for archive in ARCHIVES if archive.stem in names]
    ids = [f"{archive.parent.name} {archive.stem}" for archive in chosen]
    return pytest.mark.parametrize("archive", chosen, ids=ids)


@pytest.fixture
def work(archive, tmp_path):
    shutil.unpack_archive(archive, tmp_path / "run")
    return tmp_path / "run"


def read(path):
    return json.loads(path.read_text())


def said(prediction):
    """What is kept of a prediction, by the names of its fields."""
    names = ("probs", "epistemic", "mean", "standard_deviation")
    return {name: getattr(prediction, name) for name in names if hasattr(prediction, name)}


def test_every_release_has_its_workdirs():
    kept = {one.name: {file.stem for file in one.glob("*.zip")} for one in WORKDIRS.iterdir()}
    kept[FIRST] |= record.OF_APPLICATIONS.keys() & {one.stem for one in ARCHIVES}
    assert kept.pop(FIRST) == set(record.WORKDIRS) - {"regression"}
    assert VERSION in kept, "python tests/golden/test_workdirs.py"
    assert all(names == set(RELEASED) for names in kept.values())


def test_they_are_never_made_anew(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "WORKDIRS", tmp_path)
    (tmp_path / VERSION).mkdir()
    with pytest.raises(SystemExit, match="are never made anew"):
        make_all()


@archives("sgd", "regression", "hmc", "nuts", "mclmc", *examples("INPUTS"))
def test_it_predicts_as_it_did(work, archive):
    found, expected = said(ensemble.load(work)(some_inputs(archive.stem))), read(work / EXPECTED)
    assert found
    for name, values in found.items():
        atol = 1e-5 if name == "probs" else 1e-4
        np.testing.assert_allclose(values, expected[name], atol=atol)


@archives("sgd", "regression", "hmc", "nuts", "mclmc")
def test_its_evaluation_has_the_scores_of_its_report(work, archive, tmp_path):
    ensemble.evaluate(work, tmp_path / "out", datasets=(), data=record.data(archive.stem))
    found = numbers_of({"report": {"test": read(tmp_path / "out/evaluation.json")["test"]}})
    expected = numbers_of({"report": {"test": read(work / "report.json")["test"]}})
    if read(work / "report.json").get("version", 1) == 1:
        expected = in_version_2(expected)
    both = found.keys() & expected.keys()
    assert {"report.test.scores.nll.value", "report.test.scores.nll.members.0"} <= both
    for path in both:
        assert found[path] == pytest.approx(expected[path], rel=1e-5, abs=1e-6), path


LONGER = {
    "sgd": {"num_steps": 70},
    "regression": {"num_steps": 70},
    "hmc": {"sampler.num_samples": 75},
    **examples("LONGER"),
}


@archives(*LONGER)
def test_it_goes_on_and_has_its_own_keys_from_then_on(work, archive):
    """Before 1.0.0 they were first written with the keys of every method.

    Runs of 1.0.0 have an identity, which holds over the names that they began with.
    """
    name, is_of_first = archive.stem, archive.parent.name == "1.0.0"
    config = {**record.WORKDIRS[name], **LONGER[name]}
    report = ensemble.train(
        config, record.data(name), workdir=str(work), show_progress=False
    ).report
    found = read(work / "config.json")["config"]
    assert report["config"] == validated(config).to_dict()
    assert ("sampler" in report["config"]) == (report["method"] == "hmc")
    for former, today, of in (
        ("hmc", "sampler", report["method"] == "hmc"),
        ("pretrained", "init_from", report["method"] == "sgd"),
    ):
        assert (former in found) == (is_of_first and of), former
        if former in found:
            found[today] = found.pop(former)
    assert found == report["config"]


def make(name, folder, target):
    """Trains one of `record.WORKDIRS` and packs what a reader needs of it."""
    work, data = folder / name, record.data(name)
    ensemble.train(record.WORKDIRS[name], data, workdir=str(work), show_progress=False)
    values = said(ensemble.load(work)(some_inputs(name)))
    expected = {one: value.tolist() for one, value in values.items()}
    (work / EXPECTED).write_text(json.dumps(expected))
    shutil.rmtree(work / "plots")
    for unread in [*work.glob("**/*.tfevents.*"), *work.glob("posterior.nc"), work / ".lock"]:
        unread.unlink()
    shutil.make_archive(str(target / name), "zip", work)


def make_all():
    """Those of the version in pyproject.toml, once."""
    target = WORKDIRS / VERSION
    if target.exists():
        sys.exit(f"{target} is there, and workdirs of a release are never made anew")
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in RELEASED:
            make(name, pathlib.Path(scratch), target)


if __name__ == "__main__":
    make_all()
