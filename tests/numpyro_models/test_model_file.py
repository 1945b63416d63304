"""Models and their arguments in files."""

import json
import sys

import numpy as np
import pytest

from ensemble.numpyro_models.model import load

MODEL = """
import numpyro
import numpyro.distributions as dist


def mean(y, num_rows=2):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("row", num_rows):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
"""

WITH_SIBLINGS = """
import numpyro
import numpyro.distributions as dist
from sibling_of_model import SCALE


def mean():
    from later_sibling_of_model import PRIOR

    numpyro.sample("mu", dist.Normal(PRIOR, SCALE))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def test_json_and_npz_are_the_same_arguments(file, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"y": [0.5, 1.5], "num_rows": 2}))
    np.savez(tmp_path / "a.npz", y=np.array([0.5, 1.5]), num_rows=2)
    models = [load(f"numpyro:{file}:mean", str(tmp_path / name)) for name in ("a.json", "a.npz")]
    assert models[0].describe() == models[1].describe()
    assert models[0].latent == ["mu"]


def test_a_model_file_imports_its_siblings(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(WITH_SIBLINGS)
    (tmp_path / "sibling_of_model.py").write_text("SCALE = 2.0")
    (tmp_path / "later_sibling_of_model.py").write_text("PRIOR = 1.0")
    assert load(f"numpyro:{tmp_path / 'mine.py'}:mean", "").latent == ["mu"]
