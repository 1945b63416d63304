"""Workdirs of factorisations that earlier versions wrote."""

import pathlib
import shutil

import pytest

import ensemble

ARCHIVES = sorted((pathlib.Path(__file__).parent / "workdirs").glob("*/*.zip"))


@pytest.mark.check
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda one: one.parent.name)
def test_it_is_not_evaluated(archive, tmp_path):
    shutil.unpack_archive(archive, tmp_path / "run")
    with pytest.raises(ensemble.UserError, match=r"report\.json"):
        ensemble.evaluate(tmp_path / "run", tmp_path / "out")
