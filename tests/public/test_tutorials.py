"""The tutorials: their Python blocks run, and so do their commands."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import names
import pytest
from conftest import ROOT
from markdown_pages import blocks, python_blocks
from programs import run_here

PAGES = sorted((ROOT / "docs").glob("*_tutorial.md"))
FEW_DRAWS = ("--config.num_chains=2", "--config.sampler.num_samples=20")
QUICK = {
    "images": ("--config.num_epochs=1", "--config.ensemble_size=2"),
    "tabular": ("--config.num_epochs=2", "--config.ensemble_size=2"),
    "tabular_posterior:start": ("--config.num_epochs=2", "--config.ensemble_size=2"),
    "tabular_posterior": ("--config.sampler.num_burn_in=10", *FEW_DRAWS),
    "digits_ensemble": ("--config.ensemble_size=2",),
    "configs/digits_ensemble.py": ("--config.ensemble_size=2",),
}
SHORTER = {"num_epochs=200": "num_epochs=6"}
LEFT_OUT = ("--coordinator_address=", "--config=digits_logreg_hmc")
"""Of another machine, or half a minute each."""


by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def commands(page):
    """The commands of a page, each as a list of words."""
    text = "\n".join(text for language, text in blocks(page) if not language)
    return [
        shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines() if line
    ]


@by_page
def test_its_commands_name_what_there_is(page):
    found = commands(page)
    assert found
    for command in found:
        assert command[0] in ("ensemble", "python")
        words = " ".join(command)
        config = re.search(r"--config=(?:configs/)?(\w+)", words)
        assert config is None or (ROOT / "configs" / f"{config[1]}.py").is_file()
        keys = re.findall(r"--config\.(\S+?)=", words)
        assert set(keys) <= names.known_keys()


@pytest.mark.check
@by_page
def test_it_runs_from_start_to_end(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "ensemble", "scripts", "train.py"):  # Scripts start the last.
        (tmp_path / folder).symlink_to(ROOT / folder)
    for block in python_blocks(page):
        exec(block, {})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pathlib.Path("runs").mkdir()
    for program, *words in commands(page):
        if any(word.startswith(LEFT_OUT) for word in words):
            continue
        whole = []
        for word in words:
            start, _, value = word.rpartition(".")
            whole.append(f"{start}.{SHORTER[value]}" if value in SHORTER else word)
            if word.startswith("--config="):  # What the page itself sets comes later.
                whole += QUICK.get(word.partition("=")[2], ())
        if program == "ensemble":
            done = run_here(*names.command(whole[0]), *whole[1:])
        else:
            command = [sys.executable, *whole]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        refused = "abstain" in done.stderr and "--max_error=0.05" in whole
        assert done.returncode == 0 or refused, done.stderr[-2000:]
