"""`ensemble list KIND`."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT
from installed_packages import install

from ensemble import registry
from ensemble.commands.list import origins


def listed(kind, folder, *flags):
    return subprocess.run(
        [sys.executable, "-m", "ensemble", "list", kind, *flags],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("kind", registry.KINDS)
def test_what_is_built_in_is_listed(kind):
    found = origins(kind)
    assert set(registry.KINDS[kind].built_in) <= found.keys()
    assert set(found.values()) <= {"built in", "registered"}
    assert ("nll" in found) == (kind == "score")


@pytest.mark.check
def test_what_is_registered_and_installed_is_listed_without_importing_it(tmp_path):
    install(tmp_path, "broken", "0.3", {"network": {"wave": "not_there:AT_ALL"}})
    install(tmp_path, "other", "1.2", {"network": {"wave": "not_there:AT_ALL"}})
    file = tmp_path / "mine.py"
    file.write_text("import ensemble\nensemble.networks.register('mine', lambda k: None)\n")
    done = listed("networks", tmp_path, f"--config={file}")
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["mlp"] == "built in"
    assert rows["mine"] == "registered"
    assert rows["wave"] == "broken 0.3 and other 1.2"


def test_what_is_no_kind_is_one_line(tmp_path):
    done = listed("shapes", tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ensemble list: 'shapes' is nothing that can be listed; use one of net")
