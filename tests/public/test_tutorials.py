"""The tutorials: their Python blocks run, and so do their commands."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT
from markdown_pages import blocks, python_blocks

import ensemble

PAGES = sorted((ROOT / "docs").glob("*_tutorial.md"))
QUICK = {
    "images": ("--config.num_epochs=1", "--config.ensemble_size=2"),
    "tabular": ("--config.num_epochs=2", "--config.ensemble_size=2"),
    "tabular_posterior:start": ("--config.num_epochs=2",),
    "tabular_posterior": ("--config.sampler.num_burn_in=10", "--config.sampler.num_samples=20"),
    "digits_logreg_hmc": ("--config.sampler.num_warmup=100",),
    "configs/digits_ensemble.py": ("--config.ensemble_size=2",),
}


def _names(config):
    """The keys of a configuration, those of its blocks with the block's name."""
    found = set()
    for name, value in config.items():
        found |= {f"{name}.{key}" for key in value} if hasattr(value, "items") else {name}
    return found


by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def commands(page):
    """The commands of a page, each as a list of words."""
    text = "\n".join(text for language, text in blocks(page) if not language)
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines() if line]


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
        assert set(keys) <= _names(ensemble.default_config())


@pytest.mark.soak
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
        if any("coordinator_address" in word for word in words):
            continue  # Of another machine.
        name = next((one.partition("=")[2] for one in words if one.startswith("--config=")), "")
        module = ["-m", "ensemble"] if program == "ensemble" else []
        whole = [sys.executable, *module, *words, *QUICK.get(name, ())]
        done = subprocess.run(whole, env=environment, capture_output=True, text=True)
        refused = "abstain" in done.stderr and "--abstain=max_error=0.05" in whole
        assert done.returncode == 0 or refused, done.stderr[-2000:]
