"""Files that a workdir names, and what is said where NumPyro is not there."""

import pytest
from conftest import small_config

import ensemble
from ensemble import InputError

MODEL = """
import numpyro
from numpyro import distributions

def model():
    numpyro.sample("x", distributions.Normal(0, 1))
"""


@pytest.mark.check
def test_files_that_a_workdir_names_do_not_run(tmp_path, monkeypatch, blobs):
    monkeypatch.chdir(tmp_path)
    config = {"model": "numpyro:model.py:model", "method": "nuts", "num_chains": 2}
    config |= {"sampler.num_warmup": 10, "sampler.num_samples": 10, "sampler.thinning": 1}
    (tmp_path / "model.py").write_text(MODEL)
    ensemble.train(config, workdir="run", show_progress=False)
    harm = "import pathlib; pathlib.Path('harm').touch()"
    (tmp_path / "model.py").write_text(harm)
    (tmp_path / "mine.py").write_text(MODEL)
    with pytest.raises(InputError):
        ensemble.train(small_config(init_from="run"), blobs, workdir="other")
    mine = {**config, "model": "numpyro:mine.py:model", "init_from": "run"}
    assert ensemble.train(mine, workdir="mine", show_progress=False).report["posterior"]
    assert not (tmp_path / "harm").exists()
