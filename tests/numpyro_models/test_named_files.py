"""Files that a workdir names, and what is said where NumPyro is not there."""

import sys

import pytest
from conftest import ROOT, small_config
from test_package import WITHOUT_EXTRAS, run

import ensemble
from ensemble import UserError

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
    config |= {"sampler.num_warmup": 10, "sampler.num_samples": 10, "sampler.thin": 1}
    (tmp_path / "model.py").write_text(MODEL)
    ensemble.train(config, workdir="run", show_progress=False)
    harm = "import pathlib; pathlib.Path('harm').touch()"
    (tmp_path / "model.py").write_text(harm)
    (tmp_path / "mine.py").write_text(MODEL)
    for use in (
        lambda: ensemble.load("run"),
        lambda: ensemble.evaluate("run", datasets=()),
        lambda: ensemble.train(small_config(init_from="run"), blobs, workdir="other"),
    ):
        with pytest.raises(UserError):
            use()
    mine = {**config, "model": "numpyro:mine.py:model", "init_from": "run"}
    assert ensemble.train(mine, workdir="mine", show_progress=False).report["posterior"]
    assert not (tmp_path / "harm").exists()
    with pytest.raises(UserError, match=r"model\.py.*'model'"):
        ensemble.train(config, workdir="run", show_progress=False)
    assert (tmp_path / "harm").exists()  # Now this command named it.


@pytest.mark.check
def test_without_numpyro_a_line_names_the_extra(tmp_path):
    code = WITHOUT_EXTRAS.format(modules=["numpyro", "funsor"])
    (tmp_path / "sitecustomize.py").write_text(code)
    alone = {"cwd": tmp_path, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    train = (sys.executable, "-m", "ensemble", "train", "--config=numpyro_nuts", "--workdir=model")
    with pytest.raises(AssertionError, match=r"pip install 'flax-ensembles\[numpyro\]'"):
        run(*train, "--config.model=numpyro:model.py:model", **alone)
