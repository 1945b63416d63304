"""Models and their arguments in files."""

import json
import re
import sys

import numpy as np
import pytest

from ensemble import UserError
from ensemble.numpyro_models import model_file

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
    programs = [
        model_file.load(f"numpyro:{file}:mean", str(tmp_path / name))
        for name in ("a.json", "a.npz")
    ]
    assert programs[0].identity() == programs[1].identity()
    assert programs[0].latent == ["mu"]


@pytest.mark.parametrize(
    ("model", "content", "line"),
    [
        ("numpyro:mean", None, "numpyro:FILE.py:NAME"),
        ("logdensity:{file}:mean", None, "names no file"),
        ("numpyro:{file}.py:mean", None, "there is no file"),
        ("numpyro:{file}:median", None, "'median'"),
        ("numpyro:{file}:mean", {"y": [1.0], "x": 3}, "unexpected keyword argument 'x'"),
        ("numpyro:{file}:mean", {"num_rows": 3}, r"mean\(y, num_rows=2\): missing .* 'y'"),
        ("numpyro:{file}:mean", {"y": [[1.0], [1.0, 2.0]]}, "'y' is ragged"),
        ("numpyro:{file}:mean", {"y": ["a"]}, "'y' has values that are no numbers"),
        ("numpyro:{file}:mean", [1.0], "must hold an object of arguments by name"),
        ("numpyro:{file}:mean", {"y": [0.5, 1.5, 2.5]}, "mine.py:9 has data of the shape"),
        pytest.param("numpyro:{file}:mean", "[" * 10**5, "cannot be used .*recursion", id="deep"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(file, tmp_path, model, content, line):
    data = tmp_path / "data.json"
    data.write_text(content if isinstance(content, str) else json.dumps(content))
    name = "" if content is None else str(data)
    with pytest.raises(UserError, match=line):
        model_file.load(model.replace("{file}", str(file)), name)


@pytest.mark.parametrize(
    ("added", "line"),
    [
        ("1 / 0", "{file}:11 (ZeroDivisionError"),
        ("def other()", "mine.py, line 11"),
        ("import sys; sys.exit(0)", "{file}:11 (SystemExit: 0)"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(file, added, line):
    file.write_text(f"{MODEL}\n{added}\n")
    with pytest.raises(UserError, match=re.escape(line.format(file=file))):
        model_file.load(f"numpyro:{file}:mean", "")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("empty.json", b"", "Expecting value: line 1"),
        ("broken.json", b'{"y": [1,', "Expecting value: line 1"),
        ("binary.json", b"\x93\xff", "'utf-8'"),
        ("empty.npz", b"", "zip file"),
        ("broken.npz", b"PK\x03\x04", "zip file"),
        ("rows.csv", b"y", "its name must end in .json or .npz"),
        ("absent.json", None, "there is no file .*absent.json"),
    ],
)
def test_a_file_of_data_that_cannot_be_read_is_named(tmp_path, name, content, line):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"config.data='.*{name}'.*{line}"):
        model_file.read_arguments(str(tmp_path / name))


def test_a_model_file_imports_its_siblings(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(WITH_SIBLINGS)
    (tmp_path / "sibling_of_model.py").write_text("SCALE = 2.0")
    (tmp_path / "later_sibling_of_model.py").write_text("PRIOR = 1.0")
    assert model_file.load(f"numpyro:{tmp_path / 'mine.py'}:mean", "").latent == ["mu"]
