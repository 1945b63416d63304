"""Every Python and the lowest and highest packages that are allowed, as far as they can be had."""

import subprocess
import sys

import pytest
from conftest import ROOT

from scripts import try_versions
from scripts.try_versions import COMBINATIONS


@pytest.mark.check
@pytest.mark.parametrize("combination", [COMBINATIONS[0], COMBINATIONS[-1]])
def test_what_is_allowed_can_be_installed_without_a_compiler(combination, tmp_path):
    version, name = combination.split(":")
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "--quiet", "requirements.txt", "-",
        f"--python-version={version}", *try_versions.NO_COMPILER,
        f"--resolution={try_versions.RESOLUTIONS[name]}", f"--output-file={tmp_path / 'all.txt'}",
    ]  # fmt: skip
    beside = "\n".join(try_versions.FOR_TESTS)
    done = subprocess.run(command, cwd=ROOT, input=beside, capture_output=True, text=True)
    if "Failed to fetch" in done.stderr or "dns error" in done.stderr:
        pytest.skip(f"the package index cannot be reached, {combination} was NOT TRIED")
    assert done.returncode == 0, done.stderr
    found = dict(
        line.split("==")
        for line in (tmp_path / "all.txt").read_text().splitlines()
        if "==" in line and not line.startswith(" ")
    )
    assert name == "highest" or found["jax"] == "0.10.2"  # The lowest is what the file says.


def test_an_unknown_combination_is_one_line(capsys):
    assert try_versions.main(["2.7:lowest"]) == 2
    assert "2.7:lowest must be one of" in capsys.readouterr().err
