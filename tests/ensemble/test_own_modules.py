"""Files of the user import the modules beside them, whichever program executes them."""

import sys

import pytest
from conftest import ROOT
from programs import run_here

from ensemble.own_modules import importable

CONFIG = """
from sibling_of_config import VALUE
from ensemble import default_config


def get_config():
    from later_sibling_of_config import FACTOR

    config = default_config()
    config.seed = VALUE * FACTOR
    return config
"""


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_config_file_imports_its_siblings(tmp_path):
    (tmp_path / "mine.py").write_text(CONFIG)
    (tmp_path / "sibling_of_config.py").write_text("VALUE = 77")
    (tmp_path / "later_sibling_of_config.py").write_text("FACTOR = 3")
    done = run_here("train.py", f"--config={tmp_path / 'mine.py'}", "--explain")
    assert "231" in done.stdout, done.stderr


def test_afterwards_they_hide_no_other_module(tmp_path):
    for _ in range(2):
        with importable(tmp_path / "mine.py"):
            assert sys.path[0] == str(tmp_path)
        assert sys.path[-1] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_a_folder_that_is_known_stays_where_it_is():
    sys.path.insert(0, str(ROOT / "tests"))
    before = [*sys.path]
    with importable(ROOT / "tests" / "small_runs.py"):
        pass
    assert sys.path == before
