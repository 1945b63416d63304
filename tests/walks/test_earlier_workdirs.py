"""Workdirs of walks that earlier versions wrote."""

import json
import pathlib
import shutil

import pytest
from golden import record

import ensemble

ARCHIVES = sorted((pathlib.Path(__file__).parent / "workdirs").glob("*/*.zip"))


@pytest.mark.check
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda one: one.parent.name)
def test_its_moments_are_those_of_its_report(archive, tmp_path):
    """A finished run that is asked for no more reads its checkpoint and writes its report anew."""
    shutil.unpack_archive(archive, tmp_path / "run")
    expected = json.loads((tmp_path / "run" / "report.json").read_text())["posterior"]
    config = record.WORKDIRS[archive.stem]
    run = ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    found = run.report["posterior"]
    for name in ("mean", "variance", "num_total_samples"):
        assert found[name] == pytest.approx(expected[name])


@pytest.mark.check
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda one: one.parent.name)
def test_it_is_not_evaluated(archive, tmp_path):
    shutil.unpack_archive(archive, tmp_path / "run")
    with pytest.raises(ensemble.UserError, match=r"report\.json"):
        ensemble.evaluate(tmp_path / "run", tmp_path / "out")
